"""The log density of a NumPyro model at an unconstrained position, term by term.

A neural network's log density is a sum of up to millions of numbers, and the Metropolis test
needs the *difference* of two such sums. In float32 that difference is lost if the two are summed
first, so the density is handed out as a vector of partial sums: whoever compares two positions
subtracts entry by entry and sums afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.distribution import Independent
from numpyro.distributions.util import sum_rightmost
from numpyro.infer.util import helpful_support_errors
from numpyro.primitives import Messenger

BLOCK = 1024


def block_sums(values: jax.Array) -> jax.Array:
    """Sums of consecutive blocks of at most `BLOCK` elements."""
    flat = jnp.ravel(values)
    if flat.size <= BLOCK:
        return jnp.sum(flat, keepdims=True)
    flat = jnp.pad(flat, (0, -flat.size % BLOCK))
    return jnp.sum(flat.reshape(-1, BLOCK), axis=-1)


def site_log_prob(site: dict[str, Any]) -> jax.Array:
    """Log probability of a traced site, scaled, with event dimensions kept apart where possible."""
    fn, scale = site["fn"], site["scale"]
    unwrapped = 0
    while isinstance(fn, Independent):
        unwrapped += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    log_prob = fn.log_prob(site["value"])
    if scale is None:
        return log_prob
    if jnp.ndim(scale):  # it goes along the batch axes, to the left of those unwrapped
        scale = jnp.reshape(scale, jnp.shape(scale) + (1,) * unwrapped)
    return scale * log_prob


def is_real(support: Any) -> bool:
    """Whether a support needs no transform."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


class RefuseRandomness(Messenger):
    """Raises where a model draws random numbers outside its sample sites."""

    def process_message(self, msg: dict[str, Any]) -> None:
        """Let everything pass but requests for a key."""
        if msg["type"] == "prng_key":
            raise ValueError(
                "the model draws random numbers outside its sample sites (dropout, perhaps): "
                "under MCMC one fixed set of them would serve every draw. Remove them, or make "
                "them a latent sample site."
            )


class Unconstrain(Messenger):
    """Gives latent sites the values that an unconstrained position stands for.

    `log_det` holds, for each site that is not already on the real line, the log Jacobian of the
    transform.
    """

    def __init__(self, fn: Callable, position: dict[str, jax.Array]):
        super().__init__(fn)
        self.position = position
        self.log_det: dict[str, jax.Array] = {}

    def process_message(self, msg: dict[str, Any]) -> None:
        """Substitute the site's value, and note the volume change."""
        name = msg.get("name")
        if msg["type"] != "sample" or msg["is_observed"] or name not in self.position:
            return
        position = self.position[name]
        with helpful_support_errors(msg):
            transform = biject_to(msg["fn"].support)
        value = transform(position)
        if not is_real(msg["fn"].support):
            log_det = transform.log_abs_det_jacobian(position, value)
            extra = jnp.ndim(log_det) - jnp.ndim(value) + len(msg["fn"].event_shape)
            self.log_det[name] = sum_rightmost(log_det, max(extra, 0))
        msg["value"] = value


def run_at(
    model: Callable, position: dict[str, jax.Array], args: tuple, kwargs: dict
) -> tuple[dict[str, dict], dict[str, jax.Array]]:
    """Trace of a model at an unconstrained position, and the log Jacobians of its transforms."""
    with handlers.block():
        unconstrained = Unconstrain(model, position)
        trace = handlers.trace(unconstrained).get_trace(*args, **kwargs)
    return trace, unconstrained.log_det


def density_terms(
    trace: dict[str, dict],
    log_det: dict[str, jax.Array],
    temperature: jax.Array | float = 1.0,
    skip: frozenset[str] = frozenset(),
) -> jax.Array:
    """Partial sums of log prior + log likelihood + `temperature` * log Jacobian.

    Sites named in `skip` are left out. Divided by the temperature, the sum is the log density
    of the posterior tempered in *constrained* space: the change of volume must not be tempered
    (with it, a HalfNormal(1) at temperature 1/4 would have mean 0.94 and not 0.40).
    """
    terms = [
        block_sums(site_log_prob(site))
        for name, site in trace.items()
        if site["type"] == "sample" and name not in skip
    ]
    terms += [temperature * block_sums(value) for value in log_det.values()]
    return jnp.concatenate(terms) if terms else jnp.zeros(1)
