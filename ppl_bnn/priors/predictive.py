"""What a model believes before it sees data: its observed site under draws of the prior."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints

from ppl_bnn import inputs
from ppl_bnn.checks import check_support
from ppl_bnn.draws import Draws
from ppl_bnn.parameters import is_classifier, log_probs, unwrap
from ppl_bnn.priors.verdict import PriorCheck
from ppl_bnn.replay import Replay
from ppl_bnn.rows import abstract_trace

SEED = "seed of a prior draw"
LARGEST_SEED = 2**31 - 2  # one more must be an int32 too


def check(
    model: Callable,
    x: Any,
    y: Any = None,
    *,
    num_draws: int = 100,
    rng_key: jax.Array | None = None,
    site: str | None = None,
    batch_size: int = 16,
    points_batch_size: int | None = 1024,
    model_kwargs: dict[str, Any] | None = None,
) -> PriorCheck:
    """Draw functions from the prior, and say whether they are sensible for the data.

    Wrong scales are the commonest fault of priors over weights: functions that hardly depend on
    `x`, or class probabilities that are all 0 and 1 before a single label was seen. For prior
    predictive checks in general see Gabry et al. (2019, "Visualization in Bayesian workflow",
    section 3).

    Parameters
    ----------
    model
        A NumPyro model; it is run as ``model(x)``, or ``model(*x)`` for a tuple.
    x
        Inputs, shape (point, ...); some hundreds of rows do. A tuple for a model of several
        inputs.
    y
        Targets of these inputs, shape (point, ...), to take their scale from. Without
        them, numbers are judged as if targets had standard deviation one. Class labels are not
        needed.
    num_draws
        Number of draws of the prior, at least 2.
    rng_key
        ``jax.random.key(0)`` by default.
    site
        The observed site; needed only if several sites have a value for each row.
    batch_size, points_batch_size
        Draws and rows of `x` evaluated at once, as in `ppl_bnn.function_space`.
    model_kwargs
        Further keyword arguments of the model.

    Returns
    -------
    PriorCheck
        Prints as a verdict and its numbers; `plot` shows them.

    Raises
    ------
    ValueError
        If `x` or `y` has NaNs or they differ in rows, if the model has no observed site or
        several, if it cannot be run on `x`, or if `num_draws` is below 2.

    Examples
    --------
    >>> print(check(model, x_train, y_train))  # doctest: +SKIP
    """
    if num_draws < 2:
        raise ValueError(
            f"`num_draws` must be at least 2, to see how draws differ; got {num_draws}"
        )
    args, _ = inputs.rows(x)
    kwargs = model_kwargs or {}
    inputs.check_signature(model, args, kwargs)
    site = _observed_site(model, args, kwargs, site)
    rng_key = jax.random.key(0) if rng_key is None else rng_key
    seeds = jax.random.randint(rng_key, (1, num_draws), 0, LARGEST_SEED)
    replay = Replay(
        Draws({SEED: np.asarray(seeds)}, _one_draw(model, site)),
        args,
        site=site,
        batch_size=batch_size,
        points_batch_size=points_batch_size,
        model_kwargs=kwargs,
    )
    targets = None if y is None else _targets(y, replay)
    kind = _kind(replay.distribution)
    functions, variances = _evaluate(replay, kind)
    return PriorCheck(kind, site, args, targets, functions, variances)


def _one_draw(model: Callable, site: str) -> Callable:
    """The model with all other sites hidden and drawn from the prior by a site's value, a seed.

    So a draw takes no memory until it is evaluated, and is the same for all chunks of rows.
    """

    @functools.wraps(model)
    def one_draw(*args: Any, **kwargs: Any) -> None:
        seed = numpyro.sample(SEED, dist.DiscreteUniform(0, LARGEST_SEED))

        def hide(msg: dict[str, Any]) -> bool:
            return msg["type"] != "plate" and msg.get("name") != site

        with handlers.block(hide_fn=hide), handlers.seed(rng_seed=jax.random.key(seed)):
            model(*args, **kwargs)

    return one_draw


def _observed_site(model: Callable, args: tuple, kwargs: dict[str, Any], site: str | None) -> str:
    """The sample site that has a value for each row of the inputs."""

    def shapes(num_rows: int) -> dict[str, tuple]:
        few = jax.tree.map(lambda leaf: leaf[np.zeros(num_rows, int)], args)
        try:
            trace = abstract_trace(model, few, kwargs)
        except (TypeError, ValueError) as error:
            abstract_trace(model, args, kwargs)  # whatever else is wrong says so itself
            raise ValueError(
                f"the model does not run on {num_rows} rows of `x`, of shapes "
                f"{[leaf.shape for leaf in jax.tree.leaves(few)]}. It must take its number of rows "
                f"from `x`. The model's own error: {type(error).__name__}: {error}"
            ) from error
        return {
            name: s["shape"]
            for name, s in trace.items()
            if s["type"] == "sample" and not s["auxiliary"]
        }

    two, three = shapes(2), shapes(3)
    growing = [name for name in two if two[name] != three.get(name)]
    if site is not None:
        if site not in growing:
            raise ValueError(
                f"`site` {site!r} is no sample site with a value for each row of `x`; there are "
                f"{growing}"
            )
        return site
    if not growing:
        raise ValueError(
            "the model has no observed site: none of its sample sites has a value for each row of "
            f"`x`, there are {list(two)}. Write `numpyro.sample(name, ..., obs=y)` in a plate of "
            "`x.shape[0]` rows"
        )
    if len(growing) > 1:
        raise ValueError(
            f"several sites have a value for each row of `x`: {growing}; choose the observed one "
            "by `site=`"
        )
    return growing[0]


def _targets(y: Any, replay: Replay) -> np.ndarray:
    y, shape = np.asarray(y), replay.value_shape()
    if y.shape != shape:
        raise ValueError(
            f"`y` has shape {y.shape}, but the model's values at `x` have shape {shape}"
        )
    if y.dtype.kind in "OSUc":
        raise ValueError(f"`y` has dtype {y.dtype}; convert it to numbers")
    if not np.isfinite(y).all():
        raise ValueError("`y` holds NaN or infinite values; drop those rows")
    check_support("`y`", replay.distribution, y.dtype, y)
    return y


def _kind(distribution: Any) -> str:
    if is_classifier(distribution):
        return "classes"
    support = distribution.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    lower = getattr(support, "lower_bound", None)
    return "real" if lower is None or np.any(np.asarray(lower) < 0) else "positive"


def _evaluate(replay: Replay, kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Functions and variances of all draws, as `PriorCheck` holds them."""
    axis = replay.point_axis

    def moments(distribution: Any) -> tuple[jax.Array, jax.Array]:
        shape = distribution.batch_shape + distribution.event_shape
        if kind == "classes":
            values, variance = log_probs(distribution), jnp.zeros(shape)
        else:
            variance = jnp.broadcast_to(distribution.variance, shape)
            if kind == "positive":
                values = jnp.broadcast_to(jnp.log(distribution.mean), shape)
            else:  # a Student-t distribution of few degrees of freedom has a location, but no mean
                location = getattr(unwrap(distribution), "loc", distribution.mean)
                values = jnp.broadcast_to(location, shape)
        return jnp.moveaxis(values, axis, 0), jnp.moveaxis(variance, axis, 0)

    parts = [
        jax.tree.map(lambda value, n=rows.stop - rows.start: value[:, :n], chunk)
        for rows, chunk in replay.chunks(moments)
    ]
    functions, variances = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    return functions, None if kind == "classes" else variances
