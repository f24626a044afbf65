"""models.pooling, against XLA's window reductions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ppl_bnn.models.pooling import pool


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "window", "stride", "padding"),
    [
        ((8, 6), 2, None, 0),
        ((9, 7), 2, None, 0),
        ((9, 8), 3, 2, 1),
        ((24,), 4, None, 0),
        ((9,), 3, 1, 1),
    ],
)
@pytest.mark.parametrize("pooling", ["average", "max"])
def test_value_and_gradient(space, window, stride, padding, pooling):
    x = jax.random.normal(jax.random.key(0), (3, *space, 5))
    theirs = nnx.avg_pool if pooling == "average" else nnx.max_pool

    def expected(x):
        return theirs(
            x,
            (window,) * len(space),
            strides=(stride or window,) * len(space),
            padding=((padding, padding),) * len(space),
        )

    def ours(x):
        return pool(x, pooling, window, stride=stride, padding=padding)

    np.testing.assert_allclose(ours(x), expected(x), rtol=1e-6, atol=1e-6)
    gradients = [jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x))))(x) for f in (ours, expected)]
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)


def test_equal_maxima_share_the_gradient():
    gradient = jax.grad(lambda x: jnp.sum(pool(x, "max", 2)))(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_allclose(gradient, 0.25)


def test_inputs_smaller_than_the_window():
    with pytest.raises(ValueError, match="inputs of the network are too small"):
        pool(jnp.ones((2, 3, 3, 1)), "max", 4)


def test_unknown_name():
    with pytest.raises(ValueError, match=r"one of \['average', 'max'\], got 'mean'"):
        pool(jnp.ones((2, 4, 4, 1)), "mean", 2)
