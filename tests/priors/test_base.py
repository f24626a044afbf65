"""What priors over weights share: biases, fan-in, names, event shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from numpyro import handlers

from ppl_bnn import models, priors
from ppl_bnn.priors import expand_to_event
from ppl_bnn.random_module import random_module

ONE_SCALE = [priors.normal, priors.laplace, priors.logistic, priors.cauchy]


@pytest.mark.parametrize(
    ("path", "shape", "scale"),
    [
        ("layers.0.kernel", (16, 5), 2 / 4),
        ("conv.kernel", (3, 3, 4, 8), 2 / 6),
        ("layers.0.weight", (5, 16), 2 / 4),
        ("conv.weight", (8, 4, 3, 3), 2 / 6),
        ("cell.weight_hh", (12, 4), 2 / 2),
        ("cell.ii.kernel", (16, 5), 2 / 4),
        ("attention.query.kernel", (16, 2, 8), 2 / 4),
        ("attention.out.kernel", (2, 8, 16), 2 / 4),
        ("kernel", (16, 5), 2 / 4),
        ("embed.embedding", (9, 4), 2),
        ("layers.0.bias", (5,), 2),
        ("conv.bias", (8, 1, 1), 2),
        ("norm.scale", (5,), 2),
        ("norm.tau", (5,), 2),
        ("temperature", (), 2),
    ],
)
def test_fan_in(path, shape, scale):
    for prior in (priors.fan_in_normal(gain=2.0), priors.normal(2.0, fan_in=True)):
        distribution = prior(path, shape)
        assert isinstance(distribution, dist.Normal) and distribution.loc == 0
        np.testing.assert_allclose(distribution.scale, scale, rtol=1e-6)
    np.testing.assert_allclose(priors.laplace(2.0, fan_in=True)(path, shape).scale, scale)
    np.testing.assert_allclose(priors.cauchy(2.0, fan_in=True)(path, shape).scale, scale**2 / 2)


@pytest.mark.parametrize("net", [nnx.Embed(9, 4, rngs=nnx.Rngs(0)), linen.Embed(9, 4)])
def test_an_embedding_picks_one_row(net):
    with handlers.seed(rng_seed=0), handlers.trace() as trace:
        assert random_module("net", net, priors.fan_in_normal(3.0))(jnp.arange(3)).shape == (3, 4)
    np.testing.assert_array_equal(trace["net/embedding"]["fn"].variance, np.full((9, 4), 9.0))


@pytest.mark.parametrize("factory", ONE_SCALE)
def test_one_scale(factory):
    prior = factory(0.3)
    assert prior("kernel", (16, 5)).scale == prior("bias", (5,)).scale == 0.3
    assert factory()("kernel", (2, 2)).scale == 1.0


@pytest.mark.parametrize("factory", [*ONE_SCALE, priors.fan_in_normal, priors.horseshoe])
def test_bias_has_a_prior_of_its_own(factory):
    laplace = dist.Laplace(0, 3)
    assert factory(bias=laplace)("layers.0.bias", (5,)) is laplace
    bias = factory(bias=0.2)("layers.0.bias", (5,))
    assert isinstance(bias, dist.Normal) and bias.scale == 0.2
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="bias must be a positive"):
            factory(bias=bad)


@pytest.mark.parametrize("bad", [0.0, -1, float("inf"), float("nan")])
def test_bad_scale(bad):
    builders = [*ONE_SCALE, priors.hierarchical, priors.horseshoe, priors.regularized_horseshoe]
    for factory in builders:
        with pytest.raises(ValueError, match="scale must be a positive and finite number"):
            factory(bad)
    with pytest.raises(ValueError, match="gain must be a positive"):
        priors.fan_in_normal(bad)
    with pytest.raises(ValueError, match="df must be a positive"):
        priors.student_t(bad)
    with pytest.raises(ValueError, match="scales must be a positive"):
        priors.normal_mixture((1.0, bad))
    for option in ("slab_scale", "slab_df"):
        with pytest.raises(ValueError, match=f"{option} must be a positive"):
            priors.regularized_horseshoe(**{option: bad})


def test_other_bad_options():
    with pytest.raises(ValueError, match="got 2 scales and 3 weights"):
        priors.normal_mixture((1.0, 2.0), (0.2, 0.2, 0.6))
    with pytest.raises(ValueError, match=r"prior Normal allows negative.*HalfNormal"):
        priors.hierarchical(dist.Normal(0, 1))
    with handlers.seed(rng_seed=0), pytest.raises(ValueError, match="the scale of 'kernel'"):
        priors.hierarchical(dist.HalfNormal(jnp.ones(3)))("kernel", (4, 3))


def test_unknown_fan_in_says_what_to_do():
    with pytest.raises(ValueError, match=r"'layer.matrix' with shape \(9, 4\).*prior=\{'layer"):
        priors.fan_in_normal()("layer.matrix", (9, 4))
    assert priors.normal()("layer.matrix", (9, 4)).scale == 1.0


def test_wide_networks_have_the_same_prior_variance():
    """The variance is gain^2 times the mean square of x, plus that of the bias, at any width."""
    for width in (10, 1000):
        net = nnx.Linear(width, 4000, rngs=nnx.Rngs(0))
        with handlers.seed(rng_seed=0):
            outputs = random_module("net", net, priors.fan_in_normal())(jnp.ones((1, width)))
        np.testing.assert_allclose(outputs.var(), 2.0, rtol=4 * (2 / 4000) ** 0.5)


def test_wide_sums_of_cauchy_weights_stay_alike():
    """Half of the sums of weights that are Cauchy are smaller than the scale, at any width."""
    for width in (10, 1000):
        net = nnx.Linear(width, 4000, use_bias=False, rngs=nnx.Rngs(0))
        with handlers.seed(rng_seed=0):
            prior = priors.cauchy(0.5, fan_in=True)
            outputs = random_module("net", net, prior)(jnp.ones((1, width)))
        np.testing.assert_allclose((abs(outputs) < 0.5).mean(), 0.5, atol=4 * 0.5 / 4000**0.5)


def test_repr_and_equality():
    assert repr(priors.fan_in_normal(1.5)) == "FanInNormal(gain=1.5, bias=None)"
    assert repr(priors.normal(bias=0.1)) == "Normal(scale=1.0, fan_in=False, bias=0.1)"
    assert priors.normal(2.0) == priors.normal(2.0) != priors.normal(3.0)
    assert priors.normal(2.0) != priors.laplace(2.0)
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


def test_get():
    assert priors.get("laplace", scale=0.2, fan_in=True) == priors.laplace(0.2, fan_in=True)
    assert priors.get("student_t", df=5.0) == priors.student_t(5.0)
    with pytest.raises(
        ValueError, match=r"one of \['normal'.*got 'Laplase'; did you mean 'laplace'"
    ):
        priors.get("Laplase")
    with pytest.raises(ValueError, match=r"got 'xyz'$"):
        priors.get("xyz")


def test_get_knows_every_builder():
    others = {"Prior", "PriorCheck", "PriorFunction", "check", "expand_to_event", "get"}
    for name in set(priors.__all__) - others:
        assert callable(priors.get(name, **({"df": 3.0} if name == "student_t" else {})))


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ("laplace", r"got 'laplace': write ppl_bnn.priors.laplace\(...\)"),
        ("horshoe", r"got 'horshoe': write ppl_bnn.priors.horseshoe\("),
        ({"*": "xyz"}, r"got 'xyz': write ppl_bnn.priors.fan_in_normal\("),
    ],
)
def test_a_string_is_no_prior(prior, message, as_users_run):
    net = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with handlers.seed(rng_seed=0), pytest.raises(TypeError, match=message):
        random_module("net", net, prior)


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


@pytest.mark.parametrize(
    "scale", [-1.0, 0, np.array(-1.0), jnp.array(-1.0), jnp.nan, "1", None, [1.0]]
)
def test_scales_that_are_no_positive_numbers(scale, as_users_run):
    for builder in (priors.normal, priors.fan_in_normal, priors.horseshoe):
        with pytest.raises(ValueError, match="must be a positive and finite number, got"):
            builder(scale)


@pytest.mark.parametrize(
    "prior", [dist.Normal(), dist.Uniform(-1, 1), dist.TruncatedNormal(low=-1)]
)
def test_priors_of_a_scale_that_allow_negative_values(prior, as_users_run):
    with pytest.raises(ValueError, match=r"allows negative values; .*HalfNormal"):
        priors.hierarchical(prior)
    with pytest.raises(ValueError, match="allows negative values"):
        models.regression(models.MLP(1, (), 1), priors.normal(), noise=prior)
