"""What the trajectory rule learns from each prior, and HMC under priors that have no scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpyro.infer import MCMC
from scipy import stats

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.prior_scale import prior_scales
from ppl_bnn.random_module import random_module
from ppl_bnn.target import Target

# a standard deviation from n draws has a relative error of 1 / sqrt(2 n)
FROM_DRAWS = 4.5 / np.sqrt(2 * 1000)
X = jax.random.normal(jax.random.key(0), (12, 3))
Y = X[:, 0] - X[:, 1]
LOG_HALF_CAUCHY, LOG_HALF_NORMAL = np.pi / 2, np.pi / np.sqrt(8)


def of_sites(prior, *names):
    """Prior standard deviations of sites of a linear layer with three inputs and two outputs."""

    def model():
        random_module("net", nnx.Linear(3, 2, rngs=nnx.Rngs(0)), prior)

    names = [f"net/{name}" for name in names]
    found = prior_scales(model, names, (), {})
    return [found[name] for name in names]


@pytest.mark.parametrize(
    ("prior", "of_kernel", "of_bias"),
    [
        (priors.normal(0.3), 0.3, 0.3),
        (priors.fan_in_normal(0.3), 0.3 / np.sqrt(3), 0.3),
        (priors.laplace(0.3, fan_in=True), 0.3 * np.sqrt(2 / 3), 0.3 * np.sqrt(2)),
        (priors.logistic(0.3), 0.3 * np.pi / np.sqrt(3), 0.3 * np.pi / np.sqrt(3)),
        (priors.student_t(5.0, 0.3, bias=0.1), 0.3 * np.sqrt(5 / 3), 0.1),
        (priors.student_t(2.0, 0.3, bias=0.1), np.inf, 0.1),
        (priors.cauchy(0.3, bias=0.1), np.inf, 0.1),
        (priors.normal_mixture(), np.sqrt(5 / 320), np.sqrt(5 / 320)),
        (priors.normal_mixture((1.0, 3.0), (0.75, 0.25), bias=2.0), np.sqrt(3), 2.0),
    ],
    ids=repr,
)
def test_closed_forms(prior, of_kernel, of_bias):
    kernel, bias = of_sites(prior, "kernel", "bias")
    np.testing.assert_allclose(kernel, np.full((3, 2), of_kernel), rtol=1e-6)
    np.testing.assert_allclose(bias, np.full(2, of_bias), rtol=1e-6)


def test_sites_of_the_non_centred_parametrisation_all_have_a_scale():
    scale, ratio = of_sites(priors.hierarchical(0.3), "kernel.scale", "kernel.decentered")
    np.testing.assert_allclose(scale, LOG_HALF_NORMAL, rtol=2 * FROM_DRAWS)
    np.testing.assert_array_equal(ratio, np.ones((3, 2)))
    names = ("kernel.global_scale", "kernel.local_scale", "kernel.decentered")
    tau, lam, ratio = of_sites(priors.horseshoe(0.3), *names)
    np.testing.assert_allclose(tau, LOG_HALF_CAUCHY, rtol=1.5 * FROM_DRAWS)
    np.testing.assert_allclose(lam, LOG_HALF_CAUCHY, rtol=1.5 * FROM_DRAWS)
    np.testing.assert_array_equal(ratio, np.ones((3, 2)))


def test_centred_horseshoe_has_no_scale():
    for fan_in in (True, False):
        prior = priors.horseshoe(centered=True, fan_in=fan_in)
        assert np.isinf(of_sites(prior, "kernel", "bias")[0]).any()


def test_centred_regularised_horseshoe_has_a_scale():
    prior = priors.regularized_horseshoe(0.5, slab_scale=1.5, slab_df=8.0, centered=True)
    kernel, bias = of_sites(prior, "kernel", "bias")
    # over tau / 0.5 and lambda, tangents of uniform angles, and c^2 by its quantiles
    angles = (np.arange(1000) + 0.5) / 1000 * np.pi / 2
    u2 = (0.5 * np.tan(angles)[:, None] * np.tan(angles)) ** 2
    c2s = stats.invgamma(4.0, scale=9.0).ppf((np.arange(50) + 0.5) / 50)
    variances = np.array([c2 / (1 + c2 / u2) for c2 in c2s])
    expected = variances.mean()
    error = variances.std() / expected / 2 / np.sqrt(1000)
    assert error < 0.05
    np.testing.assert_allclose(kernel, np.sqrt(expected), rtol=4.5 * error)
    np.testing.assert_allclose(bias, np.sqrt(expected), rtol=4.5 * error)


MIXED = {
    "layers.0.kernel": priors.laplace(0.2, fan_in=True),
    "layers.1.kernel": priors.hierarchical(0.5, centered=True),
    "layers.1.bias": priors.hierarchical(0.5),
    "layers.2.kernel": priors.normal_mixture(),
    "*": priors.student_t(5.0, 0.3),
}
BY_HAND = {
    "net/layers.0.kernel": 0.2 * np.sqrt(2 / 3),
    "net/layers.0.bias": 0.3 * np.sqrt(5 / 3),
    "net/layers.1.kernel.scale": LOG_HALF_NORMAL,
    "net/layers.1.kernel": 0.5,
    "net/layers.1.bias.scale": LOG_HALF_NORMAL,
    "net/layers.1.bias.decentered": 1.0,
    "net/layers.2.kernel": np.sqrt(5 / 320),
    "net/layers.2.bias": 0.3 * np.sqrt(5 / 3),
}


def test_mixed_priors_by_hand():
    model = models.regression(models.MLP(3, (4, 4), 1), MIXED, noise=0.5)
    found = prior_scales(model, list(BY_HAND), (X,), {})
    for name, expected in BY_HAND.items():
        drawn = name.startswith("net/layers.1.kernel") or name.endswith(".scale")
        tolerance = 2 * FROM_DRAWS if drawn else 1e-6
        np.testing.assert_allclose(found[name], expected, rtol=tolerance, err_msg=name)


def length(prior, **options):
    """The trajectory length that `ppl_bnn.HMC` takes under a prior."""
    model = models.regression(models.MLP(3, (4, 4), 1), prior, noise=0.5)
    target = Target(model, (X, Y), {})
    return ppl_bnn.HMC(model, **options).settings.metric_and_length(target, target.shapes())[1]


def test_trajectory_length_under_mixed_priors():
    """With unit masses the widest prior decides: pi / 2 of it. With prior masses, pi / 2."""
    found = length(MIXED, inverse_mass_matrix="identity")
    np.testing.assert_allclose(found, np.pi / 2 * max(BY_HAND.values()), rtol=2 * FROM_DRAWS)
    prior = {"layers.0.kernel": priors.laplace(2.0), "*": priors.normal(0.3)}
    found = length(prior, inverse_mass_matrix="identity")
    np.testing.assert_allclose(found, np.pi / 2 * 2 * np.sqrt(2), rtol=1e-5)
    np.testing.assert_allclose(length(prior), np.pi / 2, rtol=1e-5)


def run(prior, transitions=2, **options):
    model = models.regression(models.MLP(3, (4,), 1), prior, noise=0.5)
    kernel = ppl_bnn.HMC(model, trajectory_jitter=0.0, warm_start=100, **options)
    mcmc = MCMC(kernel, num_warmup=transitions, num_samples=transitions, progress_bar=False)
    mcmc.run(jax.random.key(0), X, Y)
    return mcmc


@pytest.mark.slow
@pytest.mark.parametrize("prior", [priors.horseshoe(0.3, centered=True), priors.cauchy(0.3)])
def test_priors_without_a_scale_need_a_trajectory_length(prior):
    with pytest.raises(ValueError, match=r"'net/layers.0.kernel'.* give `trajectory_length`"):
        run(prior)
    mcmc = run(prior, trajectory_length=0.5, step_size=0.05, adapt_step_size=False)
    assert np.isfinite(mcmc.get_extra_fields()["energy"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior", [priors.horseshoe(0.3), priors.regularized_horseshoe(0.3, bias=1.0)]
)
def test_non_centred_horseshoes_have_a_length_and_run(prior):
    np.testing.assert_allclose(length(prior), np.pi / 2, rtol=1e-5)
    mcmc = run(prior, transitions=5, num_steps=10, chunk_size=6)
    samples = mcmc.get_samples()
    product = (
        samples["net/layers.0.kernel.global_scale"][:, None, None]
        * samples["net/layers.0.kernel.local_scale"]
        * samples["net/layers.0.kernel.decentered"]
    )
    if prior == priors.horseshoe(0.3):
        np.testing.assert_allclose(samples["net/layers.0.kernel"], product, rtol=1e-4)
    assert samples["net/layers.0.kernel"].shape == (5, 3, 4)
    assert np.isfinite(mcmc.get_extra_fields()["energy"]).all()
    prediction = ppl_bnn.predict(mcmc, X[:5])
    assert np.isfinite(prediction.mean).all()


def test_scales_inside_a_compiled_program():
    """Of a caller's: what is drawn to find them is computed at once."""
    found = {}

    def program(x):
        found.update(
            prior_scales(models.regression(net, MIXED, noise=0.5), list(BY_HAND), (X,), {})
        )
        return x

    net = models.MLP(3, (4, 4), 1)
    jax.jit(program)(jnp.zeros(()))
    outside = prior_scales(models.regression(net, MIXED, noise=0.5), list(BY_HAND), (X,), {})
    for name in BY_HAND:
        np.testing.assert_allclose(found[name], outside[name], rtol=1e-6)
