"""The log density of a target, estimated from some of its rows; and all of it, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.density import density_terms, run_at
from ppl_bnn.likelihood import ScaleSites
from ppl_bnn.row_likelihood import row_log_likelihood
from ppl_bnn.row_source import Fetched, RowSource
from ppl_bnn.target import Position, Target

Batch = Any  # rows, on the device: what `BatchDensity.take` gives


class BatchDensity(NamedTuple):
    """How a log density is estimated from batches of rows."""

    take: Callable[[jax.Array], Batch]  # row numbers, shape (B,) -> batch
    # position, batch, temperature of the Jacobian -> log density
    log_density: Callable[[Position, Batch, jax.Array | float], jax.Array]
    # position -> potential over all rows and its gradient, without Jacobian
    all_rows: Callable[[Position], tuple[jax.Array, Position]]


def batch_density(
    target: Target,
    arrays: Sequence[jax.Array],
    batch_size: int,
    *,
    source: RowSource | None = None,
    chunk_size: int | None = None,
) -> BatchDensity:
    """Log prior + N / B * log likelihood of a batch + `temperature` * log Jacobian.

    Parameters
    ----------
    target : Target
        Made with ``by_rows=True`` and ``temperature=0.0``.
    arrays : sequence of arrays
        What ``target.data.read()`` gives.
    batch_size : int
        Rows of a batch, B.
    source : RowSource, optional
        Where rows are read, if they are not in `arrays`.
    chunk_size : int, optional
        Rows of `source` read at once in a pass over all of them; by default `batch_size`.

    Returns
    -------
    BatchDensity
        Over uniformly drawn rows the log density is unbiased, and so is its gradient. With a mesh
        each device evaluates its share of the batch, and value and gradient are summed in one
        all-reduce.
    """
    rows = target.rows
    assert rows is not None
    if source is None:
        row_leaves, others = rows.split(target.data.fill(arrays))
        log_density = _estimate(target, others, batch_size)

        def all_rows(position: Position) -> tuple[jax.Array, Position]:
            total = target.log_density(arrays)
            return jax.value_and_grad(lambda z: -jnp.sum(total(z)))(position)

        return BatchDensity(
            lambda index: [leaf[index] for leaf in row_leaves], log_density, all_rows
        )

    def all_read(position: Position) -> tuple[jax.Array, Position]:
        return _pass(target, source, chunk_size or batch_size, position)

    return BatchDensity(source.take, _of_source(target, batch_size), all_read)


def _of_source(
    target: Target, batch_size: int
) -> Callable[[Position, Fetched, jax.Array | float], jax.Array]:
    """Log density from what a source gave; NaN, which stops a chain, if that could not be read."""
    from_rows = _estimate(target, [], batch_size)

    def log_density(
        position: Position, batch: Fetched, temperature: jax.Array | float
    ) -> jax.Array:
        value = from_rows(position, batch.leaves, temperature)
        return value * jnp.where(batch.is_read, 1.0, jnp.nan)  # and so is the gradient

    return log_density


def _estimate(
    target: Target, others: Sequence[Any], batch_size: int
) -> Callable[[Position, list, jax.Array | float], jax.Array]:
    """Log density from the row leaves of a batch; `others` are the leaves that hold no rows."""
    rows = target.rows
    assert rows is not None
    scale = rows.num_rows / batch_size
    scaled = ScaleSites(target.model, rows.seen_by, scale)

    def on_one_device(position: Position, batch: list, temperature: jax.Array | float) -> jax.Array:
        trace, log_det = run_at(scaled, position, *rows.join(batch, others))
        return jnp.sum(density_terms(trace, log_det, temperature))

    if target.mesh is None:
        return on_one_device

    batch_likelihood = row_log_likelihood(
        target.model, rows._replace(num_rows=batch_size), mesh=target.mesh
    )

    def on_a_mesh(position: Position, batch: list, temperature: jax.Array | float) -> jax.Array:
        leaves = jax.tree.leaves(rows.join(batch, others))
        trace, log_det = run_at(target.model, position, *rows.take(leaves, slice(0, 2)))
        values = {name: trace[name]["value"] for name in target.names}
        remaining = density_terms(trace, log_det, temperature, skip=rows.seen_by)
        return jnp.sum(remaining) + scale * batch_likelihood(values, leaves)[0]

    return on_a_mesh


def _pass(
    target: Target, source: RowSource, size: int, position: Position
) -> tuple[jax.Array, Position]:
    """Potential and gradient over all rows of a source.

    An estimate from b rows holds the whole prior and N / b times their likelihood, so the mean of
    the estimates from disjoint batches, weighted by b / N, is exact, also if the last is smaller.
    """
    num_rows = source.num_rows
    size = min(size, num_rows)

    def part(first: jax.Array | int, count: int) -> tuple[jax.Array, Position]:
        batch = source.take(first + jnp.arange(count))
        log_density, share = _of_source(target, count), count / num_rows
        return jax.value_and_grad(lambda z: -share * log_density(z, batch, 0.0))(position)

    def add(total: Any, first: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, part(first, size)), None

    num_whole = num_rows // size * size
    nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, position)
    total, _ = jax.lax.scan(add, nothing, jnp.arange(0, num_whole, size))
    if num_whole < num_rows:
        total = jax.tree.map(jnp.add, total, part(num_whole, num_rows - num_whole))
    return total
