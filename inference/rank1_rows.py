"""What the objectives of rank-1 networks ask of an observed site: its rows, one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from ppl_bnn.rows import axes_of, axis_of_rows


@contextmanager
def explained(is_by_row: bool) -> Iterator[None]:
    """Tell of the leading axis that factors have here, if a model cannot do with it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if is_by_row:
            error.add_note(
                "Here factors have a leading axis of rows, one draw for each, which "
                "`ppl_bnn.models.Rank1` layers take. A model that cannot: "
                "`Rank1ELBO(per_example=False)`, with `assignment='tiled'`."
            )
        raise


def observed(trace: dict[str, Any]) -> dict[str, Any]:
    """The observed sites of a trace."""
    return {n: s for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]}


def axis_of(site: dict[str, Any], lengths: Collection[int]) -> int:
    """The axis of an observed site, from the right, that runs over the rows.

    Where none is as long as the data (a minibatch that the model draws), it is the outermost.
    """
    axes = axes_of(site["cond_indep_stack"], site["fn"].batch_shape)
    axis = axis_of_rows(axes, lengths)
    return min(axes, default=-1) if axis is None else axis


def num_rows_of(site: dict[str, Any], axis: int) -> int:
    """How many rows a site has along its axis of rows."""
    shape = site["fn"].batch_shape
    return shape[axis] if -axis <= len(shape) else 1


def by_row(site: dict[str, Any], axis: int) -> tuple[jax.Array, jax.Array]:
    """Log probability of each row of an observed site, and its scale."""
    log_prob = site["fn"].log_prob(site["value"])
    if jnp.ndim(log_prob) == 0:
        log_prob = log_prob[None]
    scale = jnp.broadcast_to(1.0 if site["scale"] is None else site["scale"], log_prob.shape)
    rows_last = [jnp.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]) for x in (log_prob, scale)]
    return rows_last[0].sum(axis=0), rows_last[1][0]
