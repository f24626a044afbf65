"""Chains of a stochastic-gradient core on a posterior whose minibatch noise is known."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest


class Location(NamedTuple):
    """U = sum_n (theta - x_n) P (theta - x_n) / 2 and its minibatch gradients, i.i.d. indices."""

    x: np.ndarray  # shape (N, d), centred
    precision: np.ndarray  # P, shape (d, d)
    batch_size: int

    @property
    def hessian(self):
        return len(self.x) * self.precision

    @property
    def noise(self):
        """Covariance of the gradient's noise."""
        scatter = self.x.T @ self.x / len(self.x)
        return len(self.x) ** 2 / self.batch_size * self.precision @ scatter @ self.precision

    def gradient(self, rng_key, position):
        return self._at(position, self._batch(rng_key))

    def exact(self, rng_key, position):
        return self._at(position, jnp.asarray(self.x))

    def _batch(self, rng_key):
        shape, num_rows = (self.batch_size,), len(self.x)
        return jnp.asarray(self.x)[jax.random.randint(rng_key, shape, 0, num_rows, jnp.int32)]

    def _at(self, position, rows):
        def potential(position):
            away = position["a"] - rows
            each = jnp.sum((away @ self.precision) * away, axis=-1)
            return len(self.x) * jnp.mean(each) / 2

        return jax.value_and_grad(potential)(position)


@pytest.fixture
def location():
    """`location(d, num_rows=20, batch_size=2, precision=None)`; each column has variance 1."""

    def make(d=1, num_rows=20, batch_size=2, precision=None):
        x = np.random.default_rng(0).normal(size=(num_rows, d))
        x = (x - x.mean(0)) / x.std(0)
        return Location(x, np.eye(d) if precision is None else precision, batch_size)

    return make


@pytest.fixture
def simulate():
    """`simulate(step, states, gradient, num_steps, record)`: chains side by side, in one scan.

    `states` have a leading axis over chains, `gradient` takes a key and a position, `record` makes
    of a state and an info what is kept: arrays (draws, chains, ...).
    """

    def run(step, states, gradient, num_steps, record, seed=0):
        num_chains = len(jax.tree.leaves(states)[0])

        def one(rng_key, state):
            key_batch, key_step = jax.random.split(rng_key)
            return step(key_step, state, partial(gradient, key_batch))

        @jax.jit
        def scan(states, rng_key):
            def body(states, rng_key):
                states, info = jax.vmap(one)(jax.random.split(rng_key, num_chains), states)
                return states, record(states, info)

            return jax.lax.scan(body, states, jax.random.split(rng_key, num_steps))[1]

        return scan(states, jax.random.key(seed))

    return run


@pytest.fixture
def assert_mean():
    """`assert_mean(values, expected)`: means of values (draws, chains, ...), within 4 errors.

    Chains are independent, so the spread of their means gives the standard error, which is
    sd / sqrt(effective sample size) whatever the autocorrelation. It must be below `precision`
    times the expected value, so that the test can tell it from another.
    """

    def check(values, expected, precision=0.01):
        means = np.asarray(values, float).mean(0)
        error = means.std(0, ddof=1) / np.sqrt(len(means))
        assert np.all(error < precision * np.abs(expected)), error / np.abs(expected)
        z = (means.mean(0) - expected) / error
        assert np.all(np.abs(z) < 4), (means.mean(0), expected, z)

    return check
