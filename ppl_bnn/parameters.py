"""The parameters of a distribution, on scales on which they can be averaged and compared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.distribution import ExpandedDistribution, Independent, MaskedDistribution
from numpyro.distributions.util import clamp_probs

LOG_PROBS = "log_probs"


def unwrap(distribution: Any) -> Any:
    """The distribution inside `to_event`, `mask` and `expand`."""
    while isinstance(distribution, Independent | MaskedDistribution | ExpandedDistribution):
        distribution = distribution.base_dist
    return distribution


def is_classifier(distribution: Any) -> bool:
    """Whether the values of a distribution are class labels (categorical or Bernoulli)."""
    return isinstance(
        unwrap(distribution),
        dist.CategoricalProbs | dist.CategoricalLogits | dist.BernoulliProbs | dist.BernoulliLogits,
    )


def log_probs(distribution: Any) -> jax.Array:
    """Log-probabilities of all classes, shape (..., class); a Bernoulli has the classes 0 and 1."""
    base = unwrap(distribution)
    if isinstance(base, dist.CategoricalLogits):
        values = jax.nn.log_softmax(base.logits, axis=-1)
    elif isinstance(base, dist.CategoricalProbs):
        values = jnp.log(clamp_probs(base.probs))
    elif isinstance(base, dist.BernoulliLogits):
        values = jax.nn.log_sigmoid(jnp.stack([-base.logits, base.logits], axis=-1))
    else:
        probs = clamp_probs(base.probs)
        values = jnp.stack([jnp.log1p(-probs), jnp.log(probs)], axis=-1)
    shape = distribution.batch_shape + distribution.event_shape
    return jnp.broadcast_to(values, shape + values.shape[-1:])


def parameters(distribution: Any) -> dict[str, jax.Array]:
    """All parameters of a distribution, on unbounded scales where there is a usual one.

    Parameters
    ----------
    distribution
        A NumPyro distribution. `to_event`, `mask` and `expand` are looked through.

    Returns
    -------
    dict
        For a normal distribution ``mean`` and ``log_scale``; for a categorical one or a Bernoulli
        ``log_probs`` (class last), which unlike probabilities do not saturate. In general each
        parameter by its NumPyro name: as it is where it is real, with ``log_`` where it is
        positive or a simplex, with ``logit_`` where it lies in (0, 1). A distribution without
        parameters of its own (a mixture) gives its ``mean`` and ``log_variance``.
    """
    if is_classifier(distribution):
        return {LOG_PROBS: log_probs(distribution)}
    base = unwrap(distribution)
    if isinstance(base, dist.Normal):
        return {"mean": base.loc, "log_scale": jnp.log(base.scale)}
    own = dict(
        _unbounded(name, jnp.asarray(value), base.arg_constraints[name])
        for name, value in base.get_args().items()
    )
    inner = getattr(base, "base_dist", None)
    # A transformed distribution with parameters of its own (LogNormal) repeats those of its base.
    if inner is not None and not (own and isinstance(base, dist.TransformedDistribution)):
        own = parameters(inner) | own
    return own or {"mean": base.mean, "log_variance": jnp.log(base.variance)}


def _unbounded(name: str, value: jax.Array, constraint: Any) -> tuple[str, jax.Array]:
    if constraint is constraints.simplex:
        return f"log_{name}", jnp.log(clamp_probs(value))
    if constraint in (constraints.interval(0.0, 1.0), constraints.open_interval(0.0, 1.0)):
        return f"logit_{name}", jax.scipy.special.logit(clamp_probs(value))
    if constraint in (constraints.greater_than(0.0), constraints.greater_than_eq(0.0)):
        return f"log_{name}", jnp.log(value)
    return name, value
