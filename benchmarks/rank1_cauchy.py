"""Whether Cauchy factors let a long fit end, on images, with the clip of their values and without.

    python benchmarks/rank1_cauchy.py [--quick] [--data fashion_mnist] [--steps 20000]

Stopped, the same call goes on with the fit that was under way from its beginning.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from rank1_images import BATCH, Images, fit, load
from study import begin

SETTINGS = {"learning_rate": 3e-3, "width": 4.0, "prior_scale": 0.1, "init_scale": 0.01}


def once(images: Images, clip: float | None, steps: int) -> dict:
    epochs = -(-steps * BATCH // len(images.train[1]))
    result = fit(images, {"family": "cauchy", "clip": clip}, SETTINGS, 0, epochs)
    return {
        "steps": len(result.losses),
        "all losses finite": bool(np.isfinite(result.losses).all()),
        "largest loss": float(result.losses.max()),
        "loss of the last 100": float(result.losses[-100:].mean()),
        "stopped": result.stopped,
    }


def main() -> None:
    smoke = {"steps": 20, "train": 200}
    defaults = {"data": "fashion_mnist", "steps": 20_000, "train": 2000}
    options, study = begin(__doc__, "rank1_cauchy", smoke, **defaults)
    images = load(options.data, options.train, options.quick)
    for clip in (10.0, None):
        print(study.run(f"clip {clip}", partial(once, images, clip, options.steps)))


if __name__ == "__main__":
    main()
