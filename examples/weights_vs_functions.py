"""Chains that disagree about weights agree about functions.

Four chains on the UCI concrete data, one layer of 50 units. Hidden units can change places without
any change of the function, and chains rarely visit each other's arrangements, so that R-hat of many
weights stays large. R-hat of the predictions at the test points is that of functions.
"""

import argparse

import arviz as az
import jax
import numpy as np
from numpyro.infer import MCMC
from real_data import load

import ppl_bnn
from ppl_bnn import models, priors


def rhat(draws):
    """ArviZ's R-hat, not rounded, of each quantity in arrays of shape (chain, draw, ...)."""
    merged = np.concatenate([np.reshape(a, (*a.shape[:2], -1)) for a in draws], axis=2)
    return az.rhat({"x": merged})["x"].values


def main(argv=None):
    """Run the comparison, print it, and give R-hat of functions and of weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="concrete", help="a UCI set, or diabetes")
    parser.add_argument("--num-warmup", type=int, default=100)
    parser.add_argument("--num-samples", type=int, default=300, help="draws of each chain")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    table = load(args.data)
    net = models.MLP(table.x_train.shape[1], (50,), 1)
    mcmc = MCMC(
        ppl_bnn.HMC(models.regression(net, priors.fan_in_normal())),
        num_warmup=args.num_warmup,
        num_samples=args.num_samples,
        num_chains=4,
        chain_method="vectorized",
    )
    mcmc.run(jax.random.key(args.seed), table.x_train, table.y_train)

    functions = ppl_bnn.function_space(mcmc, table.x_test)["posterior"]
    weights = mcmc.get_samples(group_by_chain=True)
    of_functions = rhat([functions["mean"].values])
    of_weights = rhat([draws for name, draws in weights.items() if name != "noise"])
    print(f"\nRank-normalised split R-hat (ArviZ), 4 chains x {args.num_samples} draws")
    print("                     number   median      max    < 1.01     < 1.1     > 1.2")
    for name, values in (("test predictions", of_functions), ("weights", of_weights)):
        print(
            f"{name:17s}{len(values):10d}{np.median(values):9.4f}{values.max():9.4f}"
            f"{np.mean(values < 1.01):10.1%}{np.mean(values < 1.1):10.1%}"
            f"{np.mean(values > 1.2):10.1%}"
        )
    return of_functions, of_weights


if __name__ == "__main__":
    main()
