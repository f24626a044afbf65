"""Log densities against scipy, moments of draws against closed forms, the two parametrisations."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import integrate, stats

from ppl_bnn import priors
from ppl_bnn.random_module import random_module

RNG = np.random.default_rng(0)
KERNEL, BIAS = RNG.normal(size=(3, 2)), RNG.normal(size=2)
ROOT = np.sqrt(3)  # of the kernel's fan-in


class Mixture:
    """A mixture of centred normals, with the methods of a scipy distribution."""

    def __init__(self, scales, weights):
        self.parts = list(zip(scales, weights, strict=True))

    def logpdf(self, x):
        return np.log(sum(weight * stats.norm.pdf(x, 0, scale) for scale, weight in self.parts))

    def var(self):
        return sum(weight * scale**2 for scale, weight in self.parts)

    def moment(self, order):
        return sum(weight * stats.norm(0, scale).moment(order) for scale, weight in self.parts)


# builder, distribution of a bias, distribution of a weight of fan-in 3
INDEPENDENT = [
    (priors.normal(0.7), stats.norm(0, 0.7), stats.norm(0, 0.7)),
    (priors.fan_in_normal(0.7), stats.norm(0, 0.7), stats.norm(0, 0.7 / ROOT)),
    (priors.laplace(0.7), stats.laplace(0, 0.7), stats.laplace(0, 0.7)),
    (priors.laplace(0.7, fan_in=True), stats.laplace(0, 0.7), stats.laplace(0, 0.7 / ROOT)),
    (priors.logistic(0.7, fan_in=True), stats.logistic(0, 0.7), stats.logistic(0, 0.7 / ROOT)),
    (priors.student_t(9.0, 0.7, fan_in=True), stats.t(9, 0, 0.7), stats.t(9, 0, 0.7 / ROOT)),
    (priors.cauchy(0.7, fan_in=True), stats.cauchy(0, 0.7), stats.cauchy(0, 0.7 / 3)),
    (
        priors.normal_mixture(fan_in=True),
        Mixture([40**-0.5, 160**-0.5], [0.5, 0.5]),
        Mixture([120**-0.5, 480**-0.5], [0.5, 0.5]),
    ),
    (
        priors.normal_mixture((0.5, 2.0, 1.0), (6, 2, 2), bias=0.3),
        stats.norm(0, 0.3),
        Mixture([0.5, 2.0, 1.0], [0.6, 0.2, 0.2]),
    ),
]
NAMES = [repr(builder) for builder, *_ in INDEPENDENT]


def model(prior, shape=(3, 2)):
    net = nnx.Linear(*shape, rngs=nnx.Rngs(0))

    def run():
        random_module("net", net, prior)

    return run


def log_prob(prior, values):
    values = {f"net/{name}": jnp.asarray(value) for name, value in values.items()}
    return float(log_density(model(prior), (), {}, values)[0])


@pytest.mark.parametrize(("prior", "of_bias", "of_weight"), INDEPENDENT, ids=NAMES)
def test_log_density(prior, of_bias, of_weight):
    expected = of_bias.logpdf(BIAS).sum() + of_weight.logpdf(KERNEL).sum()
    with jax.enable_x64(True):
        found = log_prob(prior, {"kernel": KERNEL, "bias": BIAS})
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("prior", "of_bias", "of_weight"), INDEPENDENT, ids=NAMES)
def test_moments_of_draws(prior, of_bias, of_weight):
    draws = np.asarray(prior("kernel", (3, 60_000)).expand((3, 60_000)).sample(jax.random.key(0)))
    if isinstance(of_weight, Mixture) or np.isfinite(of_weight.var()):
        variance, fourth = of_weight.var(), of_weight.moment(4)
        error = np.sqrt((fourth - variance**2) / draws.size)
        assert abs(draws.mean()) < 4 * np.sqrt(variance / draws.size)
        assert abs((draws**2).mean() - variance) < 4 * error
        np.testing.assert_allclose(prior("kernel", (3, 2)).variance, variance, rtol=1e-5)
    else:
        inside = (abs(draws) < of_weight.ppf(0.75)).mean()
        assert abs(inside - 0.5) < 4 * 0.5 / np.sqrt(draws.size)


def scales_of_horseshoe(values, name, slab):
    """Standard deviations of the weights, as the papers write them."""
    tau, lam = values[f"{name}.global_scale"], values[f"{name}.local_scale"]
    if not slab:
        return tau * lam
    c2 = values[f"{name}.slab_variance"]
    return tau * np.sqrt(c2 * lam**2 / (c2 + tau**2 * lam**2))


def hyperparameters(kind):
    """Values of the scales of kernel and bias, and their log prior by scipy."""
    values, total = {}, 0.0
    for name, shape in (("kernel", (3, 2)), ("bias", (2,))):
        if kind == "hierarchical":
            values[f"{name}.scale"] = scale = RNG.gamma(2.0)
            total += stats.gamma(2.0, scale=1 / 3.0).logpdf(scale)
            continue
        values[f"{name}.global_scale"] = tau = abs(RNG.standard_cauchy())
        values[f"{name}.local_scale"] = lam = abs(RNG.standard_cauchy(shape))
        total += stats.halfcauchy(0, 0.4).logpdf(tau) + stats.halfcauchy.logpdf(lam).sum()
        if kind == "regularized":
            values[f"{name}.slab_variance"] = c2 = RNG.gamma(3.0)
            total += stats.invgamma(2.5, scale=2.5 * 1.5**2).logpdf(c2)
    return values, total


HIERARCHICAL = {
    "hierarchical": lambda **options: priors.hierarchical(dist.Gamma(2.0, 3.0), **options),
    "horseshoe": lambda **options: priors.horseshoe(0.4, **options),
    "regularized": lambda **options: priors.regularized_horseshoe(
        0.4, slab_scale=1.5, slab_df=5.0, **options
    ),
}


@pytest.mark.parametrize("kind", HIERARCHICAL)
def test_both_parametrisations_of_hierarchical_priors(kind):
    values, of_scales = hyperparameters(kind)
    if kind == "hierarchical":
        sigma = {n: values[f"{n}.scale"] * np.ones(s) for n, s in (("kernel", (3, 2)), ("bias", 2))}
    else:
        sigma = {n: scales_of_horseshoe(values, n, kind != "horseshoe") for n in ("kernel", "bias")}
    sigma["kernel"] = sigma["kernel"] / ROOT
    weights = {"kernel": KERNEL, "bias": BIAS}
    ratios = {f"{name}.decentered": weights[name] / sigma[name] for name in weights}
    build = HIERARCHICAL[kind]
    with jax.enable_x64(True):
        centred = log_prob(build(centered=True, fan_in=True), weights | values)
        other = log_prob(build(centered=False, fan_in=True), ratios | values)
    of_weights = sum(stats.norm(0, sigma[n]).logpdf(weights[n]).sum() for n in weights)
    of_ratios = sum(stats.norm.logpdf(ratio).sum() for ratio in ratios.values())
    np.testing.assert_allclose(centred, of_scales + of_weights, rtol=1e-12)
    np.testing.assert_allclose(other, of_scales + of_ratios, rtol=1e-12)
    # the change of variables from weights to ratios
    jacobian = sum(np.log(sigma[n]).sum() for n in weights)
    np.testing.assert_allclose(centred, other - jacobian, rtol=1e-12)


def weight_draws(prior, seed, num_draws=20_000):
    """Draws of one weight, each with scales of its own."""

    def draw(key):
        with handlers.block(), handlers.trace() as trace, handlers.seed(rng_seed=key):
            model(prior, (1, 1))()
        return trace["net/kernel"]["value"][0, 0]

    return np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(seed), num_draws)))


def horseshoe_cdf(t, slab=False):
    """P(|w| < t), over lambda and tau, each the tangent of a uniform angle, and c^2."""

    def given(a, b, c2=None):
        scale = np.tan(a) * np.tan(b)
        scale = scale if c2 is None else scale / np.sqrt(1 + scale**2 / c2)
        return 2 * stats.norm.cdf(t / scale) - 1

    nodes, weights = np.polynomial.legendre.leggauss(100)
    angles, weights = (nodes + 1) * np.pi / 4, weights / 2
    a, b = np.meshgrid(angles, angles)
    if not slab:
        return (given(a, b) * np.outer(weights, weights)).sum()
    shares = (np.arange(40) + 0.5) / 40
    parts = stats.invgamma(2.0, scale=8.0).ppf(shares)
    return np.mean([(given(a, b, c2) * np.outer(weights, weights)).sum() for c2 in parts])


@pytest.mark.parametrize("builder", [priors.horseshoe, priors.regularized_horseshoe])
def test_draws_of_both_parametrisations_have_the_quantiles_of_the_integral(builder):
    draws = [
        abs(weight_draws(builder(centered=centred), seed))
        for seed, centred in enumerate((False, True))
    ]
    assert stats.ks_2samp(*draws).pvalue > 1e-3
    for t in (0.05, 0.5, 5.0):
        expected = horseshoe_cdf(t, builder is priors.regularized_horseshoe)
        for sample in draws:
            error = np.sqrt(expected * (1 - expected) / sample.size)
            assert abs((sample < t).mean() - expected) < 4 * error + 1e-3, (t, expected)


def test_draws_of_a_hierarchical_prior_have_its_marginal_variance():
    for centred in (True, False):
        draws = weight_draws(priors.hierarchical(0.5, centered=centred), 7)
        # E w^4 = 3 E s^4 = 9 s^4
        assert abs((draws**2).mean() - 0.25) < 4 * np.sqrt((9 - 1) * 0.5**4 / draws.size)


def test_integral_of_the_horseshoe():
    """The horseshoe's density by another way: of tau * lambda, then of the weight."""

    def density(u):  # of a product of two half-Cauchy variables
        return 4 / np.pi**2 * (np.log(u) / (u**2 - 1) if abs(u - 1) > 1e-9 else 0.5)

    def below(v):  # u = exp(v)
        u = np.exp(v)
        return density(u) * u * (2 * stats.norm.cdf(0.5 / u) - 1)

    expected = integrate.quad(below, -40, 40, limit=400)[0]
    assert horseshoe_cdf(0.5) == pytest.approx(expected, abs=1e-3)


def test_sites_never_share_a_name():
    kinds = {
        "layers.0.kernel": priors.horseshoe(),
        "layers.1.kernel": priors.regularized_horseshoe(centered=True),
        "*.bias": priors.hierarchical(),
        "layers.2.kernel": priors.student_t(5.0),
    }

    class Net(nnx.Module):
        def __init__(self):
            sizes = [(3, 4), (4, 4), (4, 2)]
            self.layers = nnx.List([nnx.Linear(*size, rngs=nnx.Rngs(0)) for size in sizes])

    def run():
        for name in ("one", "two"):
            random_module(name, Net(), kinds)

    trace = handlers.trace(handlers.seed(run, 0)).get_trace()
    of_one = {name.removeprefix("one/") for name in trace if name.startswith("one/")}
    assert of_one == {name.removeprefix("two/") for name in trace if name.startswith("two/")}
    assert len(of_one) * 2 == len(trace)
    kernels = {"layers.0.kernel": ("global_scale", "local_scale", "decentered")}
    kernels["layers.1.kernel"] = ("global_scale", "local_scale", "slab_variance")
    kernels["layers.2.kernel"] = ()
    biases = {f"layers.{i}.bias": ("scale", "decentered") for i in range(3)}
    expected = {f"{p}.{part}" for p, parts in (kernels | biases).items() for part in parts}
    assert of_one == expected | set(kernels) | set(biases)
    assert trace["one/layers.0.kernel"]["type"] == "deterministic"
