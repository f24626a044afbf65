"""Kullback-Leibler divergences in closed form that NumPyro lacks, and those that are infinite.

Importing this adds them to `numpyro.distributions.kl_divergence`, so that NumPyro's own
``TraceMeanField_ELBO`` has them too, in place of an estimate from one draw.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpyro.distributions import (
    Cauchy,
    Distribution,
    HalfCauchy,
    HalfNormal,
    LogNormal,
    Normal,
    kl_divergence,
)


@kl_divergence.register(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> jax.Array:
    """Chyzak & Nielsen (2019), *A closed-form formula for the KL divergence between Cauchys*."""
    widths, apart = p.scale + q.scale, p.loc - q.loc
    return jnp.log((widths**2 + apart**2) / (4 * p.scale * q.scale))


@kl_divergence.register(HalfCauchy, HalfCauchy)
def _half_cauchy(p: HalfCauchy, q: HalfCauchy) -> jax.Array:
    """Folding two densities that are symmetric about the same point leaves their ratio."""
    return jnp.log((p.scale + q.scale) ** 2 / (4 * p.scale * q.scale))


@kl_divergence.register(LogNormal, LogNormal)
def _log_normal(p: LogNormal, q: LogNormal) -> jax.Array:
    """That of the logarithms, which any monotone function leaves as it is."""
    return kl_divergence(Normal(p.loc, p.scale), Normal(q.loc, q.scale))


def is_infinite(p: Distribution, q: Distribution) -> bool:
    """Whether KL(p || q) has no value, because p has no second moment where q's log is a square."""
    heavy, square = Cauchy | HalfCauchy, Normal | HalfNormal
    return isinstance(_base(p), heavy) and isinstance(_base(q), square)


def _base(distribution: Distribution) -> Distribution:
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return distribution
