import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from ppl_bnn import prior_scale
from ppl_bnn.prior_scale import prior_scales, prior_widths

# a standard deviation from n draws has a relative error of 1 / sqrt(2 n)
FROM_DRAWS = 4.5 / np.sqrt(2 * 1000)


def scales(model, *names):
    return [np.asarray(x) for x in prior_scales(model, names, (), {}).values()]


def test_closed_forms_are_exact():
    def model():
        numpyro.sample("a", dist.Normal(0, jnp.array([0.5, 2.0])).to_event(1))
        numpyro.sample("b", dist.Laplace(0, 3.0))
        numpyro.sample("c", dist.StudentT(5.0, 0, 2.0))
        numpyro.sample("d", dist.MultivariateNormal(0.0, jnp.array([[4.0, 1.0], [1.0, 9.0]])))

    a, b, c, d = scales(model, "a", "b", "c", "d")
    np.testing.assert_allclose(a, [0.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(b, 3 * np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(c, 2 * np.sqrt(5 / 3), rtol=1e-6)
    np.testing.assert_allclose(d, [2.0, 3.0], rtol=1e-6)


def test_transformed_sites_from_draws():
    def model():
        numpyro.sample("log_normal", dist.LogNormal(10.0, 0.05))  # normal in its log
        numpyro.sample("uniform", dist.Uniform(0, 1))  # logistic in its logit
        numpyro.sample("half_normal", dist.HalfNormal(7.0))  # scale drops out in the log

    log_normal, uniform, half_normal = scales(model, "log_normal", "uniform", "half_normal")
    np.testing.assert_allclose(log_normal, 0.05, rtol=FROM_DRAWS)
    np.testing.assert_allclose(uniform, np.pi / np.sqrt(3), rtol=1.5 * FROM_DRAWS)
    # var(log |z|) = pi^2 / 8 for a standard normal z
    np.testing.assert_allclose(half_normal, np.pi / np.sqrt(8), rtol=2 * FROM_DRAWS)


def test_hierarchical_sites_get_their_marginal_scale():
    def model():
        mean = numpyro.sample("mean", dist.Normal(0, 2.0))
        scale = numpyro.sample("scale", dist.Gamma(4.0, 4.0))
        numpyro.sample("w", dist.Normal(mean, scale).expand([3]).to_event(1))

    (w,) = scales(model, "w")
    # var = 4 + E[scale^2] = 4 + 1.25
    np.testing.assert_allclose(w, np.sqrt(5.25), rtol=2 * FROM_DRAWS)


@pytest.mark.parametrize("prior", [dist.Cauchy(0, 1), dist.StudentT(2.0, 0, 1), dist.Levy(0, 1)])
def test_no_finite_variance(prior):
    def model():
        numpyro.sample("w", prior)

    (w,) = scales(model, "w")
    assert np.isinf(w) or isinstance(prior, dist.Levy)  # positive: its logarithm has a variance


def test_horseshoe_has_no_finite_variance():
    def model():
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        numpyro.sample("w", dist.Normal(0, scale))

    scale, w = scales(model, "scale", "w")
    assert np.isinf(w)
    assert np.isfinite(scale)  # in its logarithm


def test_widths_are_those_of_quartiles():
    def model():
        numpyro.sample("cauchy", dist.Cauchy(0, 2.0))
        numpyro.sample("normal", dist.Normal(1.0, 2.0).expand([200]).to_event(1))

    widths = prior_widths(model, ("cauchy", "normal"), (), {})
    # quartiles of a Cauchy are one scale from its centre
    assert float(widths["cauchy"]) == pytest.approx(2 * 2.0 / 1.349, rel=0.2)
    np.testing.assert_allclose(widths["normal"].mean(), 2.0, rtol=0.02)


def test_large_sites_share_a_bounded_memory(monkeypatch):
    """In groups of sites, with fewer draws where one alone is too large."""

    def model():
        for name in "abc":
            numpyro.sample(name, dist.Cauchy(0, 3.0).expand([400]).to_event(1))

    held = []
    run = prior_scale._run

    def record(fn, **options):
        draws = run(fn, **options)
        held.append(sum(x.size for x in draws.values()))
        return draws

    monkeypatch.setattr(prior_scale, "_run", record)
    monkeypatch.setattr(prior_scale, "MOST_NUMBERS", 90_000)
    widths = prior_widths(model, "abc", (), {})
    assert held == [225 * 400] * 3
    for width in widths.values():
        assert width.shape == (400,)
        # the median over elements of a Cauchy's quartile distance, 2 * 3
        np.testing.assert_allclose(np.median(width), 6 / 1.349, rtol=0.05)
