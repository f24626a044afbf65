"""models.normalization."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx

import ppl_bnn
from ppl_bnn.models import VGG16, FilterResponseNorm, ResNet18, ThresholdedLinearUnit
from ppl_bnn.models.normalization import make_norm


@pytest.mark.parametrize("space", [(5, 4), (7,), (2, 3, 2)])
@pytest.mark.parametrize("threshold", [False, True])
def test_filter_response_normalisation_equals_the_formula(space, threshold):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(3, *space, 6)) * rng.gamma(1, size=6)
        gamma, beta, tau = rng.normal(size=(3, 6))
        net = FilterResponseNorm(6, threshold=threshold)
        net.gamma.set_value(jnp.asarray(gamma))
        net.beta.set_value(jnp.asarray(beta))
        mean_square = np.zeros((3, 6))
        for row in range(3):
            for channel in range(6):
                mean_square[row, channel] = np.mean(x[row, ..., channel] ** 2)
        scale = 1 / np.sqrt(mean_square + 1e-6)
        expected = gamma * x * scale.reshape(3, *[1] * len(space), 6) + beta
        if threshold:
            net.threshold.tau.set_value(jnp.asarray(tau))
            expected = np.where(expected > tau, expected, tau)
        np.testing.assert_allclose(net(jnp.asarray(x)), expected, rtol=1e-12, atol=1e-14)


def test_zero_channel_has_a_finite_gradient():
    net = FilterResponseNorm(2)
    gradient = jax.grad(lambda x: jnp.sum(net(x)))(jnp.zeros((1, 3, 3, 2)))
    np.testing.assert_allclose(gradient, 1e3, rtol=1e-5)


def test_rows_do_not_meet():
    x = jax.random.normal(jax.random.key(0), (4, 5, 5, 8))
    for name in ("frn", "group"):
        norm = make_norm(name, 8, nnx.Rngs(0))
        np.testing.assert_allclose(norm(x)[:2], norm(x[:2]), rtol=1e-6)


def test_thresholded_linear_unit():
    net = ThresholdedLinearUnit(2)
    net.tau.set_value(jnp.array([-1.0, 2.0]))
    x = jnp.array([[-3.0, 1.0], [0.0, 5.0]])
    np.testing.assert_array_equal(net(x), [[-1, 2], [0, 5]])


def test_parameters_and_first_values():
    net = FilterResponseNorm(3, threshold=True)
    flat = {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(net))}
    assert {path: leaf.get_value().tolist() for path, leaf in flat.items()} == {
        "gamma": [1, 1, 1],
        "beta": [0, 0, 0],
        "threshold.tau": [0, 0, 0],
    }


def test_no_axis_of_space():
    with pytest.raises(ValueError, match="at least one axis between rows and channels"):
        FilterResponseNorm(3)(jnp.ones((4, 3)))


def test_unknown_norm_suggests_the_nearest():
    with pytest.raises(
        ValueError, match=r"`norm` must be one of .*got 'groups'; did you mean 'group'"
    ):
        ResNet18(norm="groups", width=1)


@pytest.mark.parametrize("build", [VGG16, ResNet18])
def test_batch_normalisation_is_refused_where_weights_are_sampled(build):
    net = build(norm="batch", width=1)
    assert net(jnp.ones((2, 32, 32, 3))).shape == (2, 10)
    with pytest.raises(ValueError, match=r"batch statistics .*depend on the other rows"):
        with numpyro.handlers.seed(rng_seed=0):
            ppl_bnn.random_module("net", net, dist.Normal(0, 1))
