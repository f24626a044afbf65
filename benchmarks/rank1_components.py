"""Rank-1 networks by the number of components, and with one vector or both, on images.

K B, the rows that the network sees in a step, and the number of steps stay the same as K grows, so
that there are fewer distinct images in a step: "tiled", every component sees each of B images;
"sampled", each of K B images sees one component that is drawn for it.

    python benchmarks/rank1_components.py [--quick] [--data fashion_mnist] [--seeds 3]

Stopped, the same call goes on.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import optax
from common import describe_machine, print_versions
from rank1_images import SCALES, Images, judge, load, network
from study import Study, spread, whole

import ppl_bnn
from ppl_bnn import models, priors

TOTAL = 64  # rows that the network sees in a step
COMPONENTS = (1, 2, 4, 8, 16)
MIXED = 16  # draws of all components together
SETTINGS = {"learning_rate": 3e-3, "width": 2.0, "prior_scale": 0.1}


def once(
    images: Images, num_components: int, assignment: str, vectors: str, steps: int, seed: int
) -> dict:
    net = models.rank1(network(images, seed), vectors=vectors)
    near_one = dist.Normal(1.0, SETTINGS["prior_scale"])
    names = ("*.r", "*.s") if vectors == "both" else (f"*.{vectors}",)
    prior = {**dict.fromkeys(names, near_one), "*": priors.fan_in_normal(SETTINGS["width"])}
    model = models.classification(net, prior)
    batch = TOTAL // num_components if assignment == "tiled" else TOTAL
    epochs = -(-steps * batch // len(images.train[1]))
    result = whole(
        ppl_bnn.fit(
            model,
            ppl_bnn.AutoRank1(model, num_components=num_components),
            images.train,
            num_epochs=epochs,
            batch_size=batch,
            objective=ppl_bnn.Rank1ELBO(assignment=assignment),
            optimizer=optax.adam(optax.cosine_decay_schedule(SETTINGS["learning_rate"], steps)),
            kl_schedule=optax.linear_schedule(0.0, 1.0, steps // 2),
            progress_bar=False,
            rng_key=jax.random.key(seed),
        )
    )
    return judge(result.draws(max(MIXED // num_components, 1)), images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=list(SCALES), default="fashion_mnist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("runs/rank1_components"))
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps, options.train = 1, 6, 200
    print_versions("ppl_bnn", "numpyro", "jax", "flax")
    describe_machine()
    told = {k: v for k, v in vars(options).items() if k not in ("out", "quick")}
    study = Study(options.out / f"{options.data}{'-quick' * options.quick}.jsonl", told)
    images = load(options.data, options.train, 20 if options.quick else 300)
    cases = [(k, how, "both") for k in COMPONENTS for how in ("tiled", "sampled")]
    cases += [(4, "tiled", vector) for vector in ("r", "s")]
    columns = ("accuracy", "nll", "ece", "corrupted accuracy", "corrupted nll", "corrupted ece")
    lines = []
    for case in cases:
        results = [
            study.run(
                "K = {}, {}, {}".format(*case) + f", seed {seed}",
                partial(once, images, *case, options.steps, seed),
            )
            for seed in range(options.seeds)
        ]
        cells = [spread([r[column] for r in results]) for column in columns]
        seconds = np.mean([r["seconds"] for r in results])
        lines.append(f"| {' | '.join(map(str, case))} | {' | '.join(cells)} | {seconds:.0f} |")
    print("\n| K | components | vectors | " + " | ".join(columns) + " | seconds |")
    print("| --- " * (len(columns) + 4) + "|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
