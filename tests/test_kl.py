"""Closed forms of divergences against integrals, and what is infinite."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import kl_divergence
from scipy import integrate

from ppl_bnn.kl import is_infinite

PAIRS = {
    "Cauchy": (dist.Cauchy(0.3, 0.7), dist.Cauchy(-1.0, 2.0)),
    "Cauchy, one centre": (dist.Cauchy(1.0, 0.1), dist.Cauchy(1.0, 3.0)),
    "half-Cauchy": (dist.HalfCauchy(0.5), dist.HalfCauchy(2.0)),
    "log-normal": (dist.LogNormal(0.2, 0.5), dist.LogNormal(-0.5, 1.0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_against_the_integral(name):
    p, q = PAIRS[name]
    with jax.enable_x64(True):
        low = -np.inf if "alf" not in name and "log" not in name else 0.0

        def integrand(x):
            if low == 0.0 and x <= 0:
                return 0.0
            log_p, log_q = float(p.log_prob(x)), float(q.log_prob(x))
            return np.exp(log_p) * (log_p - log_q)

        expected, error = integrate.quad(integrand, low, np.inf, limit=200)
    assert float(kl_divergence(p, q)) == pytest.approx(expected, abs=1e-4 + error)
    assert float(kl_divergence(p, p)) == pytest.approx(0.0, abs=1e-6)


def test_of_vectors_as_one_event():
    p, q = (d.expand([3]).to_event(1) for d in PAIRS["Cauchy"])
    one = kl_divergence(*PAIRS["Cauchy"])
    np.testing.assert_allclose(kl_divergence(p, q), 3 * one, rtol=1e-6)


def test_what_is_infinite():
    cauchy, normal = dist.Cauchy(1.0, 0.1), dist.Normal(1.0, 0.1)
    assert is_infinite(cauchy, normal)
    assert is_infinite(cauchy.expand([3]).to_event(1), normal.expand([3]).to_event(1))
    assert is_infinite(dist.HalfCauchy(1.0), dist.HalfNormal(1.0))
    assert not is_infinite(normal, cauchy) and not is_infinite(cauchy, cauchy)
