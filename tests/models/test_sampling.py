"""Every network of the zoo under `ppl_bnn.HMC`, on real data.

Each is sampled by two chains, rows over four devices and in chunks that do not divide them; and its
leapfrog error is measured at two step sizes over one trajectory. Cost decides the settings. A
gradient of ResNet-20-FRN for two chains on 500 images takes seconds, so a trajectory has two or
three steps, few trajectories are made, and they start at the network's own initial weights after a
handful of optimiser steps. The step size is fixed: a handful of transitions cannot adapt it.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import ppl_bnn
from ppl_bnn import models
from ppl_bnn.inference.hmc import State, evaluate, leapfrog
from ppl_bnn.inference.mass_matrix import kinetic_difference, make_metric, sample_momentum
from ppl_bnn.models import (
    CNNLSTM,
    VGG16,
    LeNet,
    ResNet18,
    ResNet20FRN,
    ResNet50,
    SequenceClassifier,
    WideResNet,
)
from ppl_bnn.random_module import initial_weights
from ppl_bnn.target import Target

pytestmark = pytest.mark.slow

SCALE = 0.2  # standard deviation of the prior of every parameter
FAR = -50.0  # below what a normalised unit can be


@dataclass(frozen=True)
class Case:
    build: Any
    data: tuple[str, int]  # fixture, rows
    chunk_size: int = 3
    num_steps: int = 5
    step_size: float = 0.01  # in prior standard deviations


CASES = {
    "ResNet20FRN": Case(ResNet20FRN, ("cifar10", 500), 63, num_steps=2, step_size=0.005),
    "CNNLSTM": Case(CNNLSTM, ("imdb", 500), 63, num_steps=2),
    "LeNet": Case(lambda: LeNet(image_size=(32, 32), in_channels=3), ("cifar10", 16)),
    "VGG16": Case(lambda: VGG16(width=4, hidden_size=16), ("cifar10", 16)),
    "ResNet18": Case(lambda: ResNet18(width=4), ("cifar10", 16)),
    "WideResNet": Case(lambda: WideResNet(10, 2, width=4), ("cifar10", 16)),
    "ResNet50": Case(lambda: ResNet50(10, width=4, stem="small"), ("cifar10", 16)),
    "LSTM": Case(lambda: clinical("lstm"), ("physionet", 64)),
    "GRU": Case(lambda: clinical("gru"), ("physionet", 64)),
}


def clinical(cell):
    return SequenceClassifier(37, 16, 2, cell, missing_values=True)


def load(case, request):
    fixture, num_rows = case.data
    x, *observed, y = request.getfixturevalue(fixture)(num_rows)
    if observed:
        # each stay as if it had been discharged at another hour
        hours = 24 + np.arange(num_rows) % 25
        mask = np.arange(x.shape[1]) < hours[:, None]
        return {"x": x, "mask": mask, "observed": observed[0]}, y
    return x, y


@pytest.mark.parametrize("name", CASES)
def test_samples_sharded_and_in_chunks(name, request):
    case = CASES[name]
    x, y = load(case, request)
    kernel = ppl_bnn.HMC(
        models.classification(case.build(), dist.Normal(0, SCALE)),
        step_size=case.step_size,
        num_steps=case.num_steps,
        adapt_step_size=False,
        mesh=ppl_bnn.mesh(data=4),
        chunk_size=case.chunk_size,
        init_strategy="network",
        warm_start=5,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=3,
        num_samples=3,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), x, y, extra_fields=("energy", "accept_prob"))
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert fields["energy"].shape == (2, 3)
    assert np.isfinite(fields["energy"]).all()
    assert fields["accept_prob"].mean() > 0.5
    for site, draws in mcmc.get_samples(group_by_chain=True).items():
        assert np.isfinite(draws).all(), site
        assert np.all(draws[0, -1] != draws[1, -1]), site


@pytest.mark.parametrize("name", CASES)
def test_energy_error_falls_fourfold_with_half_the_step(name, request):
    """In float64, where no rounding hides it.

    The thresholds of filter response normalisation start where no unit meets them. At zero, where
    they start by default, most units cross their kink, and the error is of no clean order.
    """
    case = CASES[name]
    x, y = load(case, request)
    with jax.enable_x64(True):
        net = case.build()
        position = {
            site: jnp.full(value.shape, FAR) if site.endswith(".tau") else value.astype(float)
            for site, value in initial_weights("net", net).items()
        }
        prior = dist.Normal(0.0, SCALE)
        if name == "ResNet20FRN":
            prior = {"*.tau": dist.Normal(FAR, SCALE), "*": prior}
        target = Target(models.classification(net, prior), (x, y), {})
        metric = make_metric({site: jnp.full_like(v, SCALE**2) for site, v in position.items()})
        momentum = sample_momentum(jax.random.key(1), metric, position, 1.0)

        @jax.jit
        def error(step_size, num_steps, position, momentum, arrays):
            log_density = target.log_density(arrays)
            start = State(position, *evaluate(log_density, position))
            end, last = leapfrog(log_density, metric, start, momentum, step_size, num_steps)
            return kinetic_difference(metric, last, momentum) - jnp.sum(end.terms - start.terms)

        arguments = position, momentum, target.data.read()
        whole = error(case.step_size, case.num_steps, *arguments)
        half = error(case.step_size / 2, 2 * case.num_steps, *arguments)
    assert 3 < whole / half < 5, (whole, half)
