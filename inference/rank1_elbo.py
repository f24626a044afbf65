"""The objectives of rank-1 networks, for NumPyro's `SVI`.

With q a mixture of K components of equal weight, q_k, and D_k = KL(q_k || prior), summed over all
factors,

    log p(y) >= (1/K) sum_k ( E_k log p(y | theta) - D_k ),

by Jensen's inequality, since the divergence of the mixture is at most the mean of the D_k. The
weights that are points add their log prior to both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.elbo import ELBO

from ppl_bnn.arguments import check_choice, check_integer, is_number
from ppl_bnn.density import site_log_prob
from ppl_bnn.inference.rank1_guide import AutoRank1, Values
from ppl_bnn.kl import is_infinite
from ppl_bnn.random_module import weights_by_row

OBJECTIVES = ("average", "log_mixture")
DIVERGENCES = ("mixture_bound", "published")


class Rank1ELBO(ELBO):
    """Negative evidence lower bound of an `AutoRank1` guide.

    Parameters
    ----------
    objective : {"average", "log_mixture"}
        The mean over components of their log likelihoods, as in the paper; or for each row the
        logarithm of the components' mean likelihood, never less than the former. The latter trains
        the mixture as one predictor: with ``divergence="published"`` it bounds the evidence of a
        model of K experts with factors of their own, and not log p(y).
    divergence : {"mixture_bound", "published"}
        The mean of the components' divergences from the prior, which makes the bound above, or
        their sum, K times as much, which is what the paper's code has.
    kl_weight : float
        Multiplies the divergence.
    tied_mean : bool
        Measure the divergence from a normal prior that is moved to each component's own location,
        so that only its scale counts.
    num_particles : int
        Draws from each component in each evaluation.
    per_example : bool
        Draw factors for each row of the batch, which makes the gradient less noisy, as the paper
        does; `ppl_bnn.models.Rank1` layers take them. The divergence counts once all the same.

    Notes
    -----
    With minibatches (`ppl_bnn.mini_batch`, or a plate with ``subsample_size``) all components see
    the same rows. Where a divergence has no closed form, a draw estimates it.

    Raises
    ------
    ValueError
        If an argument is none of the above; and when it is evaluated, if the divergence is infinite
        (a Cauchy from a normal prior).
    TypeError
        When it is evaluated, if the guide is not an `AutoRank1`.
    """

    def __init__(
        self,
        *,
        objective: str = "average",
        divergence: str = "mixture_bound",
        kl_weight: float = 1.0,
        tied_mean: bool = False,
        num_particles: int = 1,
        per_example: bool = True,
    ):
        check_choice("objective", objective, OBJECTIVES)
        check_choice("divergence", divergence, DIVERGENCES)
        check_integer("num_particles", num_particles, 1)
        if not (is_number(kl_weight) and kl_weight >= 0):
            raise ValueError(f"`kl_weight` must be a number of at least 0, got {kl_weight!r}.")
        super().__init__(num_particles=num_particles)
        self.objective, self.divergence = objective, divergence
        self.kl_weight, self.tied_mean, self.per_example = kl_weight, tied_mean, per_example

    def loss_with_mutable_state(
        self,
        rng_key: jax.Array,
        param_map: Values,
        model: Callable,
        guide: Any,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The objective at the guide's parameters, as NumPyro's `SVI` calls it."""
        if not isinstance(guide, AutoRank1):
            raise TypeError(f"`guide` must be an AutoRank1, got a {type(guide).__name__}.")
        points, factors = guide.split(param_map)
        key_model, key_draws = jax.random.split(rng_key)
        shape = self.num_particles, guide.num_components

        def evaluate(key: jax.Array, factors: Any) -> Any:
            own = {name: guide.distribution(*both) for name, both in factors.items()}
            given = handlers.substitute(model, data=param_map)  # its own parameters
            return self._of_component(key, key_model, own, points, given, args, kwargs)

        over_components = jax.vmap(evaluate, in_axes=(0, 0))
        likelihoods, log_prior, divergences = jax.vmap(over_components, in_axes=(0, None))(
            jax.random.split(key_draws, shape), factors
        )
        log_likelihood = self._combine(list(likelihoods.values()))
        total = jnp.sum if self.divergence == "published" else jnp.mean
        divergence = total(divergences.mean(axis=0))
        elbo = log_likelihood + log_prior[0, 0] - self.kl_weight * divergence
        return {"loss": -elbo, "mutable_state": None}

    def _combine(self, sites: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
        """Log likelihood from that of each row, (particles, K, rows), and scales, for each site."""
        if self.objective == "average":
            terms = [jnp.sum((scale * rows).mean(axis=(0, 1))) for rows, scale in sites]
            return sum(terms, jnp.zeros(()))
        lengths = {rows.shape[-1] for rows, _ in sites}
        if len(lengths) > 1:
            raise ValueError(
                "`objective` is 'log_mixture', which mixes components row by row, but the observed "
                f"sites have {sorted(lengths)} rows: take 'average'."
            )
        first = sites[0][1]  # the scale of a minibatch, which weighs rows and not components
        rows = sum((rows * (scale / first) for rows, scale in sites), jnp.zeros(()))
        mixture = jax.nn.logsumexp(rows, axis=1) - jnp.log(rows.shape[1])
        return jnp.sum((first[:, 0] * mixture).mean(axis=0))

    def _of_component(self, rng_key, key_model, own, points, model, args, kwargs):
        """Log likelihood of each row, log prior of the points and divergence, with one draw."""

        def trace_at(values):
            with handlers.block():
                seeded = handlers.seed(handlers.substitute(model, data=values), key_model)
                return handlers.trace(seeded).get_trace(*args, **kwargs)

        def draw(rng_key, shape=()):
            keys = jax.random.split(rng_key, len(own))
            return {n: q.sample(k, shape) for k, (n, q) in zip(keys, own.items(), strict=True)}

        key_draw, key_rows = jax.random.split(rng_key)
        draws = draw(key_draw)
        trace = trace_at(points | draws)
        zero = jnp.zeros(())
        divergences = [self._divergence(n, q, trace[n]["fn"], draws[n]) for n, q in own.items()]
        log_priors = [jnp.sum(site_log_prob(trace[name])) for name in points]
        observed = [s for s in trace.values() if s["type"] == "sample" and s["is_observed"]]
        if self.per_example and observed:  # of the first run, XLA then drops the likelihood
            num_rows = max((s["fn"].batch_shape[-1:] or (1,))[0] for s in observed)
            with weights_by_row(num_rows):
                trace = trace_at(points | draw(key_rows, (num_rows,)))
        likelihoods = {
            name: _by_row(site)
            for name, site in trace.items()
            if site["type"] == "sample" and site["is_observed"]
        }
        return likelihoods, sum(log_priors, zero), sum(divergences, zero)

    def _divergence(
        self, name: str, q: dist.Distribution, prior: dist.Distribution, draw: jax.Array
    ) -> jax.Array:
        """KL of a factor from its prior."""
        if is_infinite(q, prior):
            raise ValueError(
                f"the divergence of {name!r} is infinite: a Cauchy has no second moment, and the "
                "prior's log density is a square. Give the site a Cauchy prior, or "
                "family='normal'."
            )
        if isinstance(q, dist.Delta):
            return -jnp.sum(prior.log_prob(q.v))
        if self.tied_mean:
            base = prior
            while isinstance(base, dist.Independent | dist.ExpandedDistribution):
                base = base.base_dist
            if not isinstance(base, dist.Normal):
                raise ValueError(
                    f"`tied_mean` is for normal priors, and that of {name!r} is a "
                    f"{type(base).__name__}."
                )
            prior = dist.Normal(q.mean, base.scale).to_event(len(q.event_shape))
        try:
            return jnp.sum(dist.kl_divergence(q, prior))
        except NotImplementedError:
            return jnp.sum(q.log_prob(draw) - prior.log_prob(draw))


def _by_row(site: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    """Log probability of each row, on the last axis of an observed site's plates, and its scale."""
    log_prob = site["fn"].log_prob(site["value"])
    if jnp.ndim(log_prob) == 0:
        log_prob = log_prob[None]
    log_prob = log_prob.reshape(-1, log_prob.shape[-1]).sum(axis=0)
    return log_prob, jnp.broadcast_to(
        1.0 if site["scale"] is None else site["scale"], log_prob.shape
    )
