"""Priors over weights by path and shape."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro import handlers

from ppl_bnn import priors
from ppl_bnn.priors import expand_to_event
from ppl_bnn.random_module import random_module


@pytest.mark.parametrize(
    ("path", "shape", "scale"),
    [
        ("layers.0.kernel", (16, 5), 2 / 4),
        ("conv.kernel", (3, 3, 4, 8), 2 / 6),
        ("layers.0.weight", (5, 16), 2 / 4),
        ("conv.weight", (8, 4, 3, 3), 2 / 6),
        ("cell.weight_hh", (12, 4), 2 / 2),
        ("attention.query.kernel", (16, 2, 8), 2 / 4),
        ("attention.out.kernel", (2, 8, 16), 2 / 4),
        ("kernel", (16, 5), 2 / 4),
        ("layers.0.bias", (5,), 2),
        ("conv.bias", (8, 1, 1), 2),
        ("norm.scale", (5,), 2),
        ("temperature", (), 2),
    ],
)
def test_fan_in_normal(path, shape, scale):
    prior = priors.fan_in_normal(gain=2.0)(path, shape)
    assert isinstance(prior, dist.Normal) and prior.loc == 0
    np.testing.assert_allclose(prior.scale, scale, rtol=1e-6)


def test_normal():
    prior = priors.normal(0.3)
    assert prior("kernel", (16, 5)).scale == prior("bias", (5,)).scale == 0.3
    assert priors.normal()("kernel", (2, 2)).scale == 1.0


@pytest.mark.parametrize("factory", [priors.normal, priors.fan_in_normal])
def test_bias_has_a_prior_of_its_own(factory):
    laplace = dist.Laplace(0, 3)
    assert factory(bias=laplace)("layers.0.bias", (5,)) is laplace
    assert factory(bias=0.2)("layers.0.bias", (5,)).scale == 0.2
    assert factory(bias=0.2)("layers.0.kernel", (1, 5)).scale == 1.0
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="bias must be a positive"):
            factory(bias=bad)


@pytest.mark.parametrize("bad", [0.0, -1, float("inf"), float("nan")])
def test_bad_scale(bad):
    with pytest.raises(ValueError, match="scale must be a positive"):
        priors.normal(bad)
    with pytest.raises(ValueError, match="gain must be a positive"):
        priors.fan_in_normal(bad)


def test_unknown_fan_in_says_what_to_do():
    with pytest.raises(ValueError, match=r"'embed.embedding' with shape \(9, 4\).*prior=\{'embed"):
        priors.fan_in_normal()("embed.embedding", (9, 4))
    embed = nnx.Embed(9, 4, rngs=nnx.Rngs(0))
    prior = {"embedding": dist.Normal(0, 1), "*": priors.fan_in_normal()}
    with handlers.seed(rng_seed=0):
        assert random_module("net", embed, prior)(jnp.arange(3)).shape == (3, 4)


def test_wide_networks_have_the_same_prior_variance():
    """The variance is gain^2 times the mean square of x, plus that of the bias, at any width."""
    for width in (10, 1000):
        net = nnx.Linear(width, 4000, rngs=nnx.Rngs(0))
        with handlers.seed(rng_seed=0):
            outputs = random_module("net", net, priors.fan_in_normal())(jnp.ones((1, width)))
        np.testing.assert_allclose(outputs.var(), 2.0, rtol=4 * (2 / 4000) ** 0.5)


def test_repr_and_equality():
    assert repr(priors.fan_in_normal(1.5)) == "FanInNormal(gain=1.5, bias=None)"
    assert repr(priors.normal(bias=0.1)) == "Normal(scale=1.0, bias=0.1)"
    assert priors.normal(2.0) == priors.normal(2.0) != priors.normal(3.0)
    assert hash(priors.normal(2.0)) == hash(priors.normal(2.0))


def test_scale_may_be_sampled():
    def model():
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        prior = priors.fan_in_normal(scale)
        return random_module("net", nnx.Linear(3, 2, rngs=nnx.Rngs(0)), prior)(jnp.ones((4, 3)))

    def log_density(scale):
        values = {"scale": scale, "net/kernel": jnp.ones((3, 2)), "net/bias": jnp.ones(2)}
        return numpyro.infer.util.log_density(model, (), {}, values)[0]

    # d/ds of HalfNormal(s), 6 N(1; 0, s^2/3) and 2 N(1; 0, s^2), at s = 1
    np.testing.assert_allclose(jax.jit(jax.grad(log_density))(1.0), -1 + 6 * 2 + 0, rtol=1e-5)


@pytest.mark.parametrize(
    ("distribution", "shape"),
    [
        (dist.Normal(0, 1), ()),
        (dist.Normal(0, 1), (3, 4)),
        (dist.Normal(jnp.zeros((3, 1)), 1.0), (3, 4)),
        (dist.Normal(jnp.zeros((3, 4)), 1.0), (3, 4)),
        (dist.Normal(jnp.zeros(4), 1.0).to_event(1), (3, 4)),
        (dist.Dirichlet(jnp.ones(4)), (2, 3, 4)),
        (dist.MultivariateNormal(jnp.zeros((3, 4)), jnp.eye(4)), (3, 4)),
    ],
)
def test_expand_to_event(distribution, shape):
    expanded = expand_to_event(distribution, shape, "w")
    value = expanded.sample(jax.random.key(0))
    assert expanded.batch_shape == () and expanded.event_shape == value.shape == shape
    np.testing.assert_allclose(
        expanded.log_prob(value), distribution.log_prob(value).sum(), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("distribution", "shape"),
    [
        (dist.Normal(jnp.zeros(3), 1.0), ()),
        (dist.Normal(jnp.zeros(3), 1.0), (1,)),
        (dist.Normal(jnp.zeros((1, 3)), 1.0), (3,)),
        (dist.Dirichlet(jnp.ones(3)), (3, 4)),
        (dist.Dirichlet(jnp.ones(3)), ()),
    ],
)
def test_expand_to_event_that_does_not_fit(distribution, shape):
    with pytest.raises(ValueError, match="the prior of w does not fit"):
        expand_to_event(distribution, shape, "w")
