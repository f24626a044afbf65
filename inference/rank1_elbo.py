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
from ppl_bnn.checks import base
from ppl_bnn.density import site_log_prob
from ppl_bnn.dropout import Dropout
from ppl_bnn.inference.rank1_guide import AutoRank1, Parts, Values, normal
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
    per_example : bool
        Draw factors for each row of the batch, which makes the gradient less noisy, as the paper
        does; `ppl_bnn.models.Rank1` layers take them. The divergence counts once all the same.
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
        per_example: bool = True,
        assignment: str = "tiled",
    ):
        check_choice("objective", objective, OBJECTIVES)
        check_choice("assignment", assignment, ASSIGNMENTS)
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
        key_model, key_draws, key_rows = jax.random.split(rng_key, 3)
        given = handlers.seed(handlers.substitute(model, data=param_map), key_model)

        def run(values: Values) -> dict[str, Any]:
            with handlers.block():
                return handlers.trace(handlers.substitute(given, data=values)).get_trace(
                    *args, **kwargs
                )

        def evaluate(key: jax.Array, factors: Any) -> Any:
            return self._of_component(key, guide, parts._replace(factors=factors), run)

        over_components = jax.vmap(evaluate, in_axes=(0, 0), axis_size=guide.num_components)
        keys = jax.random.split(key_draws, (self.num_particles, guide.num_components))
        likelihoods, log_prior, own, common = jax.vmap(over_components, in_axes=(0, None))(
            keys, parts.factors
        )
        if self.assignment != "tiled":  # XLA drops the likelihoods above
            keys = jax.random.split(key_rows, self.num_particles)
            likelihoods = jax.vmap(lambda key: self._of_rows(key, guide, parts, run))(keys)
            likelihoods = jax.tree.map(lambda leaf: leaf[:, None], likelihoods)
        log_likelihood = self._combine(list(likelihoods.values()))
        total = jnp.sum if self.divergence == "published" else jnp.mean
        divergence = total(own.mean(axis=0)) + common.mean()
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

    def _of_component(
        self, rng_key: jax.Array, guide: AutoRank1, parts: Parts, run: Callable
    ) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
        """Of one component, with one draw.

        Log likelihood of each row, log prior of the points, and the divergences of its own factors
        and of what all components share.
        """
        own = {name: guide.distribution(*both) for name, both in parts.factors.items()}
        common = {name: normal(*both) for name, both in parts.mean_field.items()}
        key_own, key_common, key_rows = jax.random.split(rng_key, 3)
        shared = parts.points | _draw(key_common, common)
        draws = shared | _draw(key_own, own)
        trace = run(draws)

        def divergence(distributions: dict[str, dist.Distribution]) -> jax.Array:
            terms = [self._divergence(n, q, trace[n], draws[n]) for n, q in distributions.items()]
            return sum(terms, jnp.zeros(()))

        log_prior = sum((jnp.sum(site_log_prob(trace[n])) for n in parts.points), jnp.zeros(()))
        divergences = divergence(own), divergence(common)
        if self.per_example and own and _observed(trace):  # XLA then drops the first likelihood
            num_rows = _num_rows(trace)
            with weights_by_row(num_rows):
                trace = run(shared | _draw(key_rows, own, (num_rows,)))
        return {n: _by_row(s) for n, s in _observed(trace).items()}, log_prior, *divergences

    def _of_rows(
        self, rng_key: jax.Array, guide: AutoRank1, parts: Parts, run: Callable
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Log likelihood of each row under the one component that it sees."""
        key_common, key_own, key_which = jax.random.split(rng_key, 3)
        num_components = guide.num_components
        common = {name: normal(*both) for name, both in parts.mean_field.items()}
        shared = parts.points | _draw(key_common, common)
        probe = {name: loc[0] for name, (loc, _) in parts.factors.items()}
        num_rows = _num_rows(run(shared | probe))  # whose values nobody asks for
        if self.assignment == "sampled":
            which = jax.random.randint(key_which, (num_rows,), 0, num_components)
        else:
            if num_rows % num_components:
                raise ValueError(
                    f"`assignment` is 'split', but a batch of {num_rows} rows does not divide "
                    f"among {num_components} components: take a `batch_size` that is a multiple "
                    "of `num_components`."
                )
            which = jnp.repeat(jnp.arange(num_components), num_rows // num_components)

        def of_rows(both: tuple[jax.Array, jax.Array]) -> dist.Distribution:
            loc, scale = (values[which] if self.per_example else values for values in both)
            return guide.distribution(loc, scale)

        draws = _draw(key_own, {name: of_rows(both) for name, both in parts.factors.items()})
        if not self.per_example:
            draws = {name: values[which] for name, values in draws.items()}
        with weights_by_row(num_rows):
            trace = run(shared | draws)
        return {name: _by_row(site) for name, site in _observed(trace).items()}

    def _divergence(
        self, name: str, q: dist.Distribution, site: dict[str, Any], draw: jax.Array
    ) -> jax.Array:
        """KL of a site from its prior, times the site's scale."""
        scale = 1.0 if site["scale"] is None else site["scale"]
        return scale * self._unscaled(name, q, site["fn"], draw)

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


def _draw(
    rng_key: jax.Array, distributions: dict[str, dist.Distribution], shape: tuple[int, ...] = ()
) -> Values:
    keys = jax.random.split(rng_key, len(distributions))
    pairs = zip(keys, distributions.items(), strict=True)
    return {name: distribution.sample(key, shape) for key, (name, distribution) in pairs}


def _observed(trace: dict[str, Any]) -> dict[str, Any]:
    return {n: s for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]}


def _num_rows(trace: dict[str, Any]) -> int:
    return max((site["fn"].batch_shape[-1:] or (1,))[0] for site in _observed(trace).values())


def _by_row(site: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
    """Log probability of each row, on the last axis of an observed site's plates, and its scale."""
    log_prob = site["fn"].log_prob(site["value"])
    if jnp.ndim(log_prob) == 0:
        log_prob = log_prob[None]
    log_prob = log_prob.reshape(-1, log_prob.shape[-1]).sum(axis=0)
    return log_prob, jnp.broadcast_to(
        1.0 if site["scale"] is None else site["scale"], log_prob.shape
    )
