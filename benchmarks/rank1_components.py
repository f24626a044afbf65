"""Rank-1 networks by the number of components, and with one vector or both, on images.

K B, the rows that the network sees in a step, and the number of steps stay the same as K grows, so
that there are fewer distinct images in a step: "tiled", every component sees each of B images;
"sampled", each of K B images sees one component that is drawn for it.

    python benchmarks/rank1_components.py [--quick] [--data fashion_mnist] [--seeds 3]

Stopped, the same call goes on.
"""

from __future__ import annotations

from functools import partial

import jax
import numpyro.distributions as dist
import optax
from rank1_images import SCORES, Images, judge, load, network
from study import begin, table, whole

import ppl_bnn
from ppl_bnn import models, priors

TOTAL = 64  # rows that the network sees in a step
COMPONENTS = (1, 2, 4, 8, 16)
MIXED = 16  # draws of all components together
SETTINGS = {"learning_rate": 3e-3, "width": 4.0, "prior_scale": 0.1}


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
    smoke = {"seeds": 1, "steps": 6, "train": 200}
    defaults = {"data": "fashion_mnist", "seeds": 3, "steps": 1000, "train": 2000}
    options, study = begin(__doc__, "rank1_components", smoke, **defaults)
    images = load(options.data, options.train, options.quick)
    cases = [(k, how, "both") for k in COMPONENTS for how in ("tiled", "sampled")]
    cases += [(4, "tiled", vector) for vector in ("r", "s")]
    rows = {}
    for case in cases:
        name = "K = {}, {}, {}".format(*case)
        rows[name] = study.seeds(name, partial(once, images, *case, options.steps), options.seeds)
    table(rows, SCORES)


if __name__ == "__main__":
    main()
