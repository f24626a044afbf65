"""What three networks believe before they see data, under two priors.

A dense network on a table, a convolutional one on images, a recurrent one on series. Prints the
verdicts of `priors.check` and draws a figure for each network (those of docs/priors.md).
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

from ppl_bnn import models, priors

PRIORS = {"normal(1)": priors.normal(), "fan_in_normal(1)": priors.fan_in_normal()}


def dense():
    """Diabetes: ten features, a target; two hidden layers."""
    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(axis=0)) / x.std(axis=0), (y - y.mean()) / y.std()
    net = models.MLP(10, (50, 50), 1)
    return lambda prior: models.regression(net, prior), x, y


def convolutional():
    """Images of digits, 16 x 16 pixels: LeNet."""
    images = load_digits().images.repeat(2, axis=1).repeat(2, axis=2)[..., None]
    net = models.LeNet(10, image_size=(16, 16))
    return lambda prior: models.classification(net, prior), images / images.std(), None


def recurrent():
    """Random walks of 40 steps in two variables: an LSTM."""
    x = np.random.default_rng(0).normal(size=(300, 40, 2)).cumsum(axis=1) / 40**0.5
    net = models.SequenceClassifier(2, 32, 2)
    return lambda prior: models.classification(net, prior), x, None


def main(argv=None):
    """Check each network under both priors, and give what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-draws", type=int, default=60)
    parser.add_argument("--num-points", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("prior-check"), help="folder")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)

    checks = {}
    for network in (dense, convolutional, recurrent):
        model, x, y = network()
        x, y = x[: args.num_points], None if y is None else y[: args.num_points]
        figure = plt.figure(figsize=(8, 5), layout="constrained")
        for part, (name, prior) in zip(figure.subfigures(2, 1), PRIORS.items(), strict=True):
            # draw by draw: convolutions with many sets of weights at once are slow on a CPU
            check = priors.check(model(prior), x, y, num_draws=args.num_draws, batch_size=1)
            checks[network.__name__, name] = check
            print(f"{network.__doc__.rstrip('.')}, {name}\n{check}\n")
            part.suptitle(name, fontsize="medium")
            check.plot(axes=part.subplots(1, 2))
        figure.savefig(args.out / f"{network.__name__}.png", dpi=80)
        plt.close(figure)
    return checks


if __name__ == "__main__":
    main()
