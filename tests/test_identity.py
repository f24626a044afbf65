"""Which models count as the same."""

import functools
import os
import subprocess
import sys

import jax
import numpy as np
import numpyro.distributions as dist

from ppl_bnn import models, priors
from ppl_bnn.identity import identity

SCALE = 1.0


def make(scale, values=None, prior=None):
    def model(x, y=None):
        return scale, values, prior, x, y

    return model


def test_the_same_model_made_again_is_the_same():
    for again in (
        lambda: make(1.0),
        lambda: make(1.0, np.arange(3.0), dist.Normal(0, 2.0)),
        lambda: make(functools.partial(make, 2.0), {"b": 1, "a": [2, 3]}),
        lambda: models.regression(models.MLP(3, (4,), 1), priors.fan_in_normal(), noise=0.5),
    ):
        assert identity(again()) == identity(again())


SCRIPT = """
import numpyro.distributions as dist
import ppl_bnn
from ppl_bnn import models
from ppl_bnn.identity import identity

heavy = dist.StudentT(3.0, 1.0, 0.5)
prior = {"*.bias": dist.Normal(0, 1), "*.r": heavy, "*.s": heavy, "*": dist.Laplace(0, 2)}
model = models.regression(models.rank1(models.MLP(3, (4,), 1)), prior, noise=0.7)
print(identity([model, vars(ppl_bnn.AutoRank1(model, num_components=2))]))
"""


def test_the_same_model_in_another_process_is_the_same():
    """Python orders sets of words in another way in each process."""
    told = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    ]
    assert len(told[0]) > 1000
    assert told[0] == told[1] == told[2]


def test_what_differs():
    def recursive(x):
        return recursive(x) if x else SCALE

    found = [
        make(1.0),
        make(2.0),
        make(1.0, np.arange(3.0)),
        make(1.0, np.arange(3.0) + 1),
        make(1.0, jax.numpy.arange(3.0) + 2),
        make(1.0, prior=dist.Normal(0, 1.0)),
        make(1.0, prior=dist.Normal(0, 2.0)),
        make(1.0, prior=dist.Laplace(0, 2.0)),
        make(make(1.0)),
        make(make(2.0)),
        lambda x: 1.0,
        lambda x: 2.0,
        lambda x, y=1.0: 2.0,
        recursive,
        models.regression(models.MLP(3, (4,), 1), priors.fan_in_normal(), noise=0.5),
        models.regression(models.MLP(3, (4,), 1), priors.fan_in_normal(), noise=0.6),
        models.regression(models.MLP(3, (4,), 1), dist.Normal(0, 1), noise=0.6),
    ]
    assert len(set(map(identity, found))) == len(found)
