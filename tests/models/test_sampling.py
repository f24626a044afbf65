"""Every network of the zoo under `ppl_bnn.HMC`, on real data.

Each is sampled by two chains, rows over four devices and in chunks that do not divide them. Cost
decides the settings: compiling such a network takes a minute, and a gradient of ResNet-20-FRN for
two chains on 500 images takes seconds, so a trajectory has a few steps of a fixed size, a few
trajectories are made, from the network's own initial weights, and one compiled transition serves
all of them.
"""

import os
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import ppl_bnn
from ppl_bnn import models
from ppl_bnn.models import (
    CNNLSTM,
    MLP,
    VGG16,
    LeNet,
    ResNet18,
    ResNet20FRN,
    ResNet50,
    SequenceClassifier,
    WideResNet,
)
from ppl_bnn.random_module import initial_weights

pytestmark = pytest.mark.slow

SCALE = 0.2  # standard deviation of the prior of every parameter
FAR = -50.0  # below what a normalised unit can be
STEPS = 4


@dataclass(frozen=True)
class Case:
    build: Any
    data: tuple[str, int]  # fixture, rows
    step_size: float  # in prior standard deviations
    chunk_size: int = 3
    kinks: bool = False  # at thresholds: then the energy error is of no clean order
    far: bool = False  # whether thresholds lie where no unit meets them


IN_CI = ("MLP", "LeNet", "LSTM")  # the others take minutes each, nearly all to compile
CASES = {
    "MLP": Case(lambda: MLP(32 * 32 * 3, (16,), 10), ("cifar10", 16), 0.02),
    "LeNet": Case(lambda: LeNet(image_size=(32, 32), in_channels=3), ("cifar10", 16), 0.02),
    "VGG16": Case(lambda: VGG16(width=4, hidden_size=16), ("cifar10", 16), 0.02),
    "ResNet18": Case(lambda: ResNet18(width=4), ("cifar10", 16), 0.02),
    "WideResNet": Case(lambda: WideResNet(10, 2, width=4), ("cifar10", 16), 0.02),
    "ResNet50": Case(lambda: ResNet50(10, width=4, stem="small"), ("cifar10", 16), 0.01),
    "LSTM": Case(lambda: clinical("lstm"), ("physionet", 64), 0.06),
    "GRU": Case(lambda: clinical("gru"), ("physionet", 64), 0.06),
    "CNNLSTM": Case(CNNLSTM, ("imdb", 500), 0.015, 63),
    "ResNet20FRN": Case(ResNet20FRN, ("cifar10", 500), 0.005, 63, kinks=True),
    "ResNet20FRN, smooth": Case(ResNet20FRN, ("cifar10", 500), 0.005, 63, far=True),
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
    return x.reshape(num_rows, -1) if case is CASES["MLP"] else x, y


study = pytest.mark.skipif(
    "PPL_BNN_STUDIES" not in os.environ, reason="takes minutes; set PPL_BNN_STUDIES=1 to run it"
)


@pytest.mark.parametrize("name", [n if n in IN_CI else pytest.param(n, marks=study) for n in CASES])
def test_samples_sharded_and_in_chunks(name, request):
    case = CASES[name]
    data = load(case, request)
    net, prior, start = case.build(), dist.Normal(0.0, SCALE), None
    if case.far:
        prior = {"*.tau": dist.Normal(FAR, SCALE), "*": prior}
        values = initial_weights("net", net).items()
        start = {n: jnp.full_like(v, FAR) if n.endswith(".tau") else v for n, v in values}
        start = jax.tree.map(lambda v: jnp.stack([v, v]), start)
    kernel = ppl_bnn.HMC(
        models.classification(net, prior),
        step_size=case.step_size,
        trajectory_length=STEPS * case.step_size,
        trajectory_jitter=0.0,
        adapt_step_size=False,
        mesh=ppl_bnn.mesh(data=4),
        chunk_size=case.chunk_size,
        init_strategy="network",
        warm_start=0,
    )
    state = kernel.init(jax.random.split(jax.random.key(0)), 0, start, data, {})
    transition = jax.jit(lambda state: kernel.sample(state, data, {}))

    half = state.adapt_state._replace(step_size=state.adapt_state.step_size / 2)
    states = [transition(state._replace(adapt_state=half)), transition(state)]
    assert [int(s.num_steps[0]) for s in states] == [2 * STEPS, STEPS]
    halved, whole = (np.asarray(s.energy_error) for s in states)
    print(name, whole, halved, whole / halved)
    if not case.kinks:
        assert ((3 < whole / halved) & (whole / halved < 5)).all(), (whole, halved)

    for _ in range(3):
        states.append(transition(states[-1]))
    assert np.isfinite([s.energy for s in states]).all()
    assert np.mean([s.accept_prob for s in states[2:]]) > 0.5
    for site, draws in states[-1].z.items():
        assert np.isfinite(draws).all(), site
        # an element that moves by less than float32 resolves is no fault; one in ten would be
        assert np.mean(draws[0] != draws[1]) > 0.9, site
        assert np.mean(draws != state.z[site]) > 0.9, site


@study
def test_memory_of_a_gradient_over_all_of_cifar():
    """40,960 images in chunks of 256, from the compiled program's own account; nothing is run."""
    model = models.classification(ResNet20FRN(), dist.Normal(0.0, SCALE))
    chunked = ppl_bnn.full_batch(model, chunk_size=256)
    x, y = np.zeros((40_960, 32, 32, 3), np.float32), np.zeros(40_960, np.int32)
    weights = initial_weights("net", ResNet20FRN())

    def log_posterior(weights, x, y):
        return log_density(chunked, (x, y), {}, weights)[0]

    compiled = jax.jit(jax.value_and_grad(log_posterior)).lower(weights, x, y).compile()
    memory = compiled.memory_analysis().temp_size_in_bytes
    print(f"{memory / 2**30:.2f} GiB")
    assert memory < 4 * 2**30
