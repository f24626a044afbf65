"""The log density of a target, estimated from some of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from ppl_bnn.density import density_terms, run_at
from ppl_bnn.likelihood import ScaleRows
from ppl_bnn.row_likelihood import row_log_likelihood
from ppl_bnn.target import Position, Target


def batch_log_density(
    target: Target, arrays: Sequence[jax.Array], batch_size: int
) -> Callable[[Position, jax.Array, jax.Array | float], jax.Array]:
    """Log prior + N / B * log likelihood of a batch + `temperature` * log Jacobian.

    Parameters
    ----------
    target : Target
        Made with ``by_rows=True``.
    arrays : sequence of arrays
        What ``target.data.read()`` gives.
    batch_size : int
        Rows of a batch, B.

    Returns
    -------
    callable
        ``(position, index, temperature) -> log density``, with `index` row numbers of shape (B,).
        Over uniformly drawn rows it is unbiased, and so is its gradient. With a mesh each device
        evaluates its share of the batch, and value and gradient are summed in one all-reduce.
    """
    rows = target.rows
    assert rows is not None
    leaves = target.data.fill(arrays)
    scale = rows.num_rows / batch_size
    scaled = ScaleRows(target.model, rows, scale)

    def on_one_device(
        position: Position, index: jax.Array, temperature: jax.Array | float
    ) -> jax.Array:
        trace, log_det = run_at(scaled, position, *rows.take(leaves, index))
        return jnp.sum(density_terms(trace, log_det, temperature))

    if target.mesh is None:
        return on_one_device

    batch_likelihood = row_log_likelihood(
        target.model, rows._replace(num_rows=batch_size), mesh=target.mesh
    )
    seen = frozenset(name for name, axis in rows.sites.items() if axis is not None)

    def on_a_mesh(
        position: Position, index: jax.Array, temperature: jax.Array | float
    ) -> jax.Array:
        batch = jax.tree.leaves(rows.take(leaves, index))
        trace, log_det = run_at(target.model, position, *rows.take(batch, slice(0, 2)))
        values = {name: trace[name]["value"] for name in target.names}
        others = density_terms(trace, log_det, temperature, skip=seen)
        return jnp.sum(others) + scale * batch_likelihood(values, batch)[0]

    return on_a_mesh
