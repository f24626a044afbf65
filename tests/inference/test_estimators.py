"""Minibatch estimates of the potential and its gradient, on models as users write them."""

from itertools import combinations
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import potential_energy

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.batch_density import batch_density
from ppl_bnn.inference.estimators import against_anchor, at_anchor, plain
from ppl_bnn.target import Target

N, B = 8, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (X @ [1.0, -0.5] + 0.3 * RNG.normal(size=N)).astype(np.float32)


def network(x, y=None):
    return models.regression(models.MLP(2, (3,), 1), priors.normal())(x, y)


def location(x, y=None):
    """Gaussian data with an unknown mean: the gradient noise does not depend on the position."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)


def make(model, args, mesh=None, chunk_size=None):
    target = Target(
        model, args, {}, mesh=mesh, chunk_size=chunk_size, temperature=0.0, by_rows=True
    )
    density = batch_density(target, target.data.read(), B)

    @jax.jit
    def log_density(position, index, temperature):
        return density.log_density(position, density.take(index), temperature)

    return target, density.all_rows, log_density


def positions(target, count=2, scale=0.5):
    shapes = target.shapes()
    rng = np.random.default_rng(1)
    return [
        {n: jnp.asarray(scale * rng.normal(size=s.shape), s.dtype) for n, s in shapes.items()}
        for _ in range(count)
    ]


def mean_over_all_batches(function):
    """Average over all batches without repetition, and over the single rows of batches of one."""
    batches = jnp.asarray(list(combinations(range(N), B)))
    assert len(batches) == comb(N, B)
    values = jax.jit(jax.vmap(function))(batches)
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), values)


def assert_close(found, expected, rtol=2e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max()),
        found,
        expected,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "against_anchor"])
@pytest.mark.parametrize("devices", [None, 2])
def test_estimates_are_unbiased_over_all_batches(kind, devices):
    mesh = None if devices is None else ppl_bnn.mesh(data=devices)
    target, all_rows, log_density = make(network, (X, Y), mesh)
    position, anchor_position = positions(target)

    def exact(z):
        return potential_energy(network, (X, Y), {}, z)

    expected = jax.value_and_grad(exact)(position)

    def estimate(index):
        if kind == "plain":
            return plain(log_density, index, 1.0)(position)
        anchor = at_anchor(anchor_position, all_rows)
        return against_anchor(log_density, index, 1.0, anchor)(position)

    assert_close(mean_over_all_batches(estimate), expected)


def test_against_an_anchor_the_gradient_is_exact_at_the_anchor():
    target, all_rows, log_density = make(network, (X, Y), chunk_size=3)
    (position,) = positions(target, 1)
    anchor = at_anchor(position, all_rows)
    expected = jax.value_and_grad(lambda z: potential_energy(network, (X, Y), {}, z))(position)
    for index in ([0, 1, 2], [5, 5, 7]):
        found = against_anchor(log_density, jnp.asarray(index), 1.0, anchor)(position)
        assert_close(found, expected)


def test_against_an_anchor_the_location_model_has_no_noise():
    target, all_rows, log_density = make(location, (X,))
    position, anchor_position = positions(target)
    anchor = at_anchor(anchor_position, all_rows)
    batches = jnp.asarray(list(combinations(range(N), B)))

    def spread(estimate):
        gradients = jax.vmap(lambda index: estimate(index)(position)[1])(batches)["mean"]
        return np.ptp(gradients, axis=0).max()

    noise = spread(lambda index: plain(log_density, index, 1.0))
    assert noise > 1.0
    assert spread(lambda index: against_anchor(log_density, index, 1.0, anchor)) < 1e-5 * noise


@pytest.mark.parametrize("devices", [None, 2])
def test_the_jacobian_takes_the_temperature_and_nothing_else_does(devices):
    mesh = None if devices is None else ppl_bnn.mesh(data=devices)
    target, _, log_density = make(network, (X, Y), mesh)
    (position,) = positions(target, 1)
    index = jnp.arange(B)
    values = [log_density(position, index, t) for t in (0.0, 1.0, 3.0)]
    # `noise` is a HalfNormal, whose unconstrained coordinate is its logarithm
    np.testing.assert_allclose(values[1] - values[0], position["noise"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(values[2] - values[0], 3 * position["noise"], rtol=1e-4, atol=1e-5)
