"""The objectives of rank-1 networks, for NumPyro's `SVI`.

With q a mixture of K components of equal weight, q_k, and D_k = KL(q_k || prior), summed over all
factors,

    log p(y) >= (1/K) sum_k ( E_k log p(y | theta) - D_k ),

by Jensen's inequality, since the divergence of the mixture is at most the mean of the D_k. The
weights that are points add their log prior to both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.elbo import ELBO

from ppl_bnn.arguments import check_choice, check_integer, is_number
from ppl_bnn.checks import base
from ppl_bnn.density import site_log_prob
from ppl_bnn.dropout import Dropout
from ppl_bnn.inference.rank1_draws import (
    Packed,
    Packing,
    deviations,
    flipped,
    is_symmetric,
    normals,
    place,
)
from ppl_bnn.inference.rank1_guide import AutoRank1, LocScale, Parts, Values, normal
from ppl_bnn.inference.rank1_rows import axis_of, by_row, explained, num_rows_of, observed
from ppl_bnn.kl import is_infinite
from ppl_bnn.random_module import weights_by_row

OBJECTIVES = ("average", "log_mixture")
DIVERGENCES = ("mixture_bound", "published")
ASSIGNMENTS = ("tiled", "split", "sampled")


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
    per_example : bool or "flipped"
        Draw factors for each row of the batch, which makes the gradient less noisy, as the paper
        does; `ppl_bnn.models.Rank1` layers take them. The divergence counts once all the same.
        "flipped" draws the sizes of deviations once and their signs for each row, which is faster
        and nearly as quiet.
    assignment : {"tiled", "split", "sampled"}
        Which components see which rows of a batch. All see all, so that the network runs on K
        times as many rows, as in the paper; each sees its own Kth of them, and K must divide the
        batch; or each row sees one that is drawn for it. The average objective has the same mean
        in all three. The latter two need layers that take factors for each row.

    Notes
    -----
    Scales that handlers give to sites (`numpyro.handlers.scale`) weigh their divergences and log
    probabilities. Where a divergence has no closed form, a draw estimates it.

    Raises
    ------
    ValueError
        If an argument is none of the above; and when it is evaluated, if the divergence is infinite
        (a Cauchy from a normal prior), or K does not divide a batch that is to be split.
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
        per_example: bool | str = True,
        assignment: str = "tiled",
    ):
        check_choice("objective", objective, OBJECTIVES)
        check_choice("assignment", assignment, ASSIGNMENTS)
        if not isinstance(per_example, bool):
            check_choice("per_example", per_example, ("flipped",), " or True or False")
        if objective == "log_mixture" and assignment != "tiled":
            raise ValueError(
                "`objective` is 'log_mixture', which needs every component at every row: "
                f"`assignment` must be 'tiled', got {assignment!r}."
            )
        check_choice("divergence", divergence, DIVERGENCES)
        check_integer("num_particles", num_particles, 1)
        if not (is_number(kl_weight) and kl_weight >= 0):
            raise ValueError(f"`kl_weight` must be a number of at least 0, got {kl_weight!r}.")
        super().__init__(num_particles=num_particles)
        self.objective, self.divergence = objective, divergence
        self.kl_weight, self.tied_mean, self.per_example = kl_weight, tied_mean, per_example
        self.assignment = assignment

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
        parts = guide.split(param_map)
        key_model, key_common, key_own, key_rows = jax.random.split(rng_key, 4)
        given = handlers.seed(handlers.substitute(model, data=param_map), key_model)

        def run(values: Values) -> dict[str, Any]:
            pinned = handlers.substitute(given, data=values | parts.points)
            with handlers.block():
                return handlers.trace(pinned).get_trace(*args, **kwargs)

        lead = self.num_particles, guide.num_components
        packing = Packing(parts.factors)
        packed = packing.pack(parts.factors, guide.num_components)
        own = place(guide, packed, deviations(key_own, guide, (*lead, packing.num_values)))
        common = normals(key_common, parts.mean_field, lead)

        draws = common | packing.unpack(own)

        def over_all(fn: Callable, *in_axes: int | None) -> Callable:
            """Over particles and components; arguments without an axis of particles have None."""
            inner = jax.vmap(fn, axis_size=lead[1])
            return jax.vmap(inner, in_axes=in_axes, axis_size=lead[0])

        terms = over_all(partial(self._terms, guide, parts, run), 0, None)
        log_prior, own_divergence, common_divergence = terms(draws, parts.factors)
        total = jnp.sum if self.divergence == "published" else jnp.mean
        divergence = total(own_divergence.mean(axis=0)) + common_divergence.mean()

        leaves = jax.tree.leaves((args, kwargs))
        lengths = {leaf.shape[0] for leaf in leaves if getattr(leaf, "shape", ())}

        def likelihoods(values: Values) -> dict[str, tuple[jax.Array, jax.Array]]:
            found = observed(run(values))
            return {n: by_row(site, axis_of(site, lengths)) for n, site in found.items()}

        # whose values nobody asks for, so that XLA drops them
        first = observed(run(jax.tree.map(lambda leaf: leaf[0, 0], draws)))
        num_rows = max(num_rows_of(site, axis_of(site, lengths)) for site in first.values())
        is_tiled = self.assignment == "tiled"
        is_by_row = bool(self.per_example) and guide.family != "delta"
        key_which, key_rows = jax.random.split(key_rows)
        which = None if is_tiled else self._which(key_which, num_rows, guide.num_components)
        if is_by_row:
            of_rows = Packed(*(x[:, None] if is_tiled else x[which] for x in packed))
            shape = (*lead, num_rows) if is_tiled else (lead[0], num_rows)
            each = self._deviations_by_row(key_rows, guide, shape, packing)
            own = place(guide, of_rows, each)
        elif not is_tiled:
            own = own[:, which]
        with weights_by_row(num_rows), explained(is_by_row or not is_tiled):
            if is_tiled:
                found = over_all(likelihoods, 0)(common | packing.unpack(own))
            else:
                shared = {name: values[:, 0] for name, values in common.items()}
                found = jax.vmap(likelihoods, axis_size=lead[0])(shared | packing.unpack(own))
                found = jax.tree.map(lambda leaf: leaf[:, None], found)
        log_likelihood = self._combine(list(found.values()))
        elbo = log_likelihood + log_prior[0, 0] - self.kl_weight * divergence
        return {"loss": -elbo, "mutable_state": None}

    def _terms(
        self, guide: AutoRank1, parts: Parts, run: Callable, draws: Values, factors: LocScale
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log prior of the points, divergences of a component's factors and of what all share."""
        trace = run(draws)
        own = {name: guide.distribution(*both) for name, both in factors.items()}
        common = {name: normal(*both) for name, both in parts.mean_field.items()}

        def divergence(distributions: dict[str, dist.Distribution]) -> jax.Array:
            terms = [self._divergence(n, q, trace[n], draws[n]) for n, q in distributions.items()]
            return sum(terms, jnp.zeros(()))

        log_prior = sum((jnp.sum(site_log_prob(trace[n])) for n in parts.points), jnp.zeros(()))
        return log_prior, divergence(own), divergence(common)

    def _deviations_by_row(
        self, rng_key: jax.Array, guide: AutoRank1, lead: tuple[int, ...], packing: Packing
    ) -> jax.Array:
        """Deviations of all factors, shape (*lead, values); the last of `lead` are rows."""
        if self.per_example == "flipped" and is_symmetric(guide):
            return flipped(rng_key, guide, lead, packing.num_values)
        return deviations(rng_key, guide, (*lead, packing.num_values))

    def _which(self, rng_key: jax.Array, num_rows: int, num_components: int) -> jax.Array:
        """The component of each row, shape (rows,)."""
        if self.assignment == "sampled":
            return jax.random.randint(rng_key, (num_rows,), 0, num_components)
        if num_rows % num_components:
            raise ValueError(
                f"`assignment` is 'split', but a batch of {num_rows} rows does not divide among "
                f"{num_components} components: take a `batch_size` that is a multiple of "
                "`num_components`."
            )
        return jnp.repeat(jnp.arange(num_components), num_rows // num_components)

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

    def _divergence(
        self, name: str, q: dist.Distribution, site: dict[str, Any], draw: jax.Array
    ) -> jax.Array:
        """KL of a site from its prior, times the site's scale."""
        scale = 1.0 if site["scale"] is None else site["scale"]
        prior = site["fn"].to_event(len(site["fn"].batch_shape))  # q is one event
        return scale * self._unscaled(name, q, prior, draw)

    def _unscaled(
        self, name: str, q: dist.Distribution, prior: dist.Distribution, draw: jax.Array
    ) -> jax.Array:
        if is_infinite(q, prior):
            raise ValueError(
                f"the divergence of {name!r} is infinite: a Cauchy has no second moment, and the "
                "prior's log density is a square. Give the site a Cauchy prior, or "
                "family='normal'."
            )
        if isinstance(base(q), Dropout):
            return jnp.zeros(())
        if isinstance(q, dist.Delta):
            return -jnp.sum(prior.log_prob(q.v))
        if self.tied_mean:
            inner = base(prior)
            if not isinstance(inner, dist.Normal):
                raise ValueError(
                    f"`tied_mean` is for normal priors, and that of {name!r} is a "
                    f"{type(inner).__name__}."
                )
            prior = dist.Normal(q.mean, inner.scale).to_event(len(q.event_shape))
        try:
            return jnp.sum(dist.kl_divergence(q, prior))
        except NotImplementedError:
            return jnp.sum(q.log_prob(draw) - prior.log_prob(draw))
