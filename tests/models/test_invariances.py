"""What a posterior must not depend on, and how it must grow, for networks of every kind."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.models import MLP, LeNet, ResNet20FRN, SequenceClassifier


@dataclass(frozen=True)
class Case:
    build: Any
    input_shape: tuple
    num_units: int
    units: dict  # pattern of a parameter's path -> the axis along which the units lie
    gates: dict = field(default_factory=dict)  # the same where each unit has several entries


CASES = {
    "MLP": Case(
        lambda: MLP(3, (5, 4), 2),
        (3,),
        5,
        {"layers.0.*": -1, "layers.1.kernel": 0},
    ),
    "LeNet": Case(
        lambda: LeNet(2, image_size=(12, 12), width=3),
        (12, 12, 1),
        3,
        {"convs.0.*": -1, "convs.1.kernel": 2},
    ),
    "ResNet20FRN": Case(
        lambda: ResNet20FRN(2, width=3),
        (8, 8, 3),
        3,
        {"blocks.0.convs.0.*": -1, "blocks.0.norms.0.*": 0, "blocks.0.convs.1.kernel": 2},
    ),
    "LSTM": Case(
        lambda: SequenceClassifier(3, 4, 2, "lstm"),
        (6, 3),
        4,
        {"cell.dense_h.kernel": 0, "dense.kernel": 0},
        {"cell.dense_?.*": -1},
    ),
    "GRU": Case(
        lambda: SequenceClassifier(3, 4, 2, "gru"),
        (6, 3),
        4,
        {"cell.dense_h.kernel": 0, "dense.kernel": 0},
        {"cell.dense_?.*": -1},
    ),
}


SLOW_TO_COMPILE = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("LeNet", "ResNet20FRN") else name
    for name in CASES
]


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=SLOW_TO_COMPILE)
def case(request):
    return CASES[request.param]


def posterior(case, num_rows=6):
    """Model, data and a draw of the weights from their prior."""
    model = models.classification(case.build(), priors.normal(0.3))
    x = jax.random.normal(jax.random.key(0), (num_rows, *case.input_shape))
    y = jnp.arange(num_rows) % 2
    trace = handlers.trace(handlers.seed(model, 1)).get_trace(x, y)
    weights = {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    return model, x, y, weights


def permuted(case, weights, patterns):
    """Weights with their units in another order, in the parameters that match `patterns`."""
    order = np.roll(np.arange(case.num_units), 1)
    result = dict(weights)
    for name in weights:
        path = name.removeprefix("net/")
        for pattern in patterns:
            if not fnmatchcase(path, pattern):
                continue
            axis = (case.units | case.gates)[pattern]
            values = result[name]
            length = values.shape[axis]
            assert length % case.num_units == 0 and (pattern in case.gates or length == len(order))
            starts = case.num_units * np.arange(length // case.num_units)
            result[name] = jnp.take(values, (starts[:, None] + order).ravel(), axis)
    return result


def test_order_of_hidden_units(case):
    model, x, y, weights = posterior(case)
    density = jax.jit(lambda weights: log_density(model, (x, y), {}, weights)[0])
    patterns = [*case.units, *case.gates]
    reference = density(weights)
    np.testing.assert_allclose(density(permuted(case, weights, patterns)), reference, rtol=1e-12)
    # and each of these parameters takes part
    for left_out in patterns:
        rest = [pattern for pattern in patterns if pattern != left_out]
        other = density(permuted(case, weights, rest))
        assert abs(other - reference) > 1e-8 * abs(reference), left_out


@jax.jit
def log_prior(weights):
    return sum(priors.normal(0.3)("", w.shape).log_prob(w).sum() for w in weights.values())


def check_duplicated(model, x, y, weights):
    log_likelihood = jax.jit(
        lambda weights, x, y: log_density(model, (x, y), {}, weights)[0] - log_prior(weights)
    )
    once = log_likelihood(weights, x, y)
    twice = log_likelihood(weights, jnp.concatenate([x, x]), jnp.concatenate([y, y]))
    assert once < -1
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-12)


def test_duplicated_rows_double_the_log_likelihood(case):
    check_duplicated(*posterior(case))


@pytest.mark.slow
def test_duplicated_rows_on_devices_and_in_chunks():
    """Six rows, then twelve, neither of which the devices or chunks divide evenly."""
    model, *rest = posterior(CASES["MLP"])
    check_duplicated(ppl_bnn.full_batch(model, mesh=ppl_bnn.mesh(data=4), chunk_size=2), *rest)
