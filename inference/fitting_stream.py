"""What `fit` sees of the data: batch after batch, from any step on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ppl_bnn.arguments import check_integer
from ppl_bnn.inference import batches
from ppl_bnn.row_source import RowSource, are_arrays, as_source, kinds

ROWS_LOOKED_AT = 16
STEPS_AHEAD = 64  # whose row numbers are drawn at once
Arguments = tuple[tuple, dict[str, Any]]


class Batch(NamedTuple):
    """Rows of one step."""

    arguments: Arguments
    ends_epoch: bool


class RowStream:
    """Shuffled epochs over rows that are read by their numbers.

    Step n has the rows at places n B to (n + 1) B of one epoch after the other, each in an order of
    its own: what a step sees follows from its number, so that a resumed fit needs no memory of it.
    """

    def __init__(self, data: Any, batch_size: int, rng_key: jax.Array):
        in_memory = not isinstance(data, RowSource)
        data = _on_host(data) if in_memory else data
        self.source = as_source(data, "data")
        self.num_rows = self.source.num_rows
        check_integer("batch_size", batch_size, 1)
        if batch_size > self.num_rows:
            raise ValueError(
                f"`batch_size` is {batch_size}, but there are {self.num_rows} rows in `data`."
            )
        self.batch_size = batch_size
        few = np.arange(min(self.num_rows, ROWS_LOOKED_AT))
        self.first = _arguments(data) if in_memory else self.source.arguments(few)
        seed = batches.first_place(rng_key).seed

        @jax.jit
        def rows_of(epoch: jax.Array, offset: jax.Array) -> jax.Array:
            return batches.draw(
                rng_key,  # of no use to epochs
                batches.Place(seed, epoch, offset),
                num_rows=self.num_rows,
                batch_size=batch_size,
                batching="epochs",
                num_batches=STEPS_AHEAD,
            )[0]

        self._rows_of = rows_of

    def num_steps(self, num_epochs: int) -> int | None:
        """Steps in so many epochs."""
        return -(-num_epochs * self.num_rows // self.batch_size)

    def from_step(self, step: int) -> Iterator[Batch]:
        """Batches of this step and all that follow."""
        while True:
            epoch, offset = divmod(step * self.batch_size, self.num_rows)
            for index in np.asarray(self._rows_of(np.uint32(epoch), np.int32(offset))):
                used = offset + self.batch_size
                yield Batch(self.source.arguments(index), used >= self.num_rows)
                offset = used % self.num_rows
                step += 1


class IterableStream:
    """Batches that the user's own iterable gives; a pass over it is an epoch."""

    def __init__(self, data: Iterable, num_rows: int | None):
        if num_rows is None:
            raise ValueError(
                "`data` is an iterable of batches, which does not tell how many rows there are in "
                "all: give `num_rows`, by which the log likelihood of a batch is scaled."
            )
        check_integer("num_rows", num_rows, 1)
        self.data, self.num_rows = data, int(num_rows)
        self.started = iter(data)
        first = next(self.started, None)
        if first is None:
            raise ValueError("`data` is an iterable without batches.")
        self.first = _arguments(first)
        batch_size = len(jax.tree.leaves(self.first)[0])
        if batch_size > num_rows:
            raise ValueError(
                f"`num_rows` is {num_rows}, but a batch of `data` has {batch_size} rows: give the "
                "number of all rows."
            )

    def num_steps(self, num_epochs: int) -> int | None:
        """Not known, unless the iterable has a length."""
        length = getattr(self.data, "__len__", None)
        return None if length is None else num_epochs * length()

    def from_step(self, step: int) -> Iterator[Batch]:
        """Batches of this step and all that follow; those before are read and dropped."""
        if iter(self.data) is self.data:  # used up by one pass, and one batch was looked at
            passes: Iterator[Iterator] = iter([_after(self.first, self.started)])
        else:
            passes = iter(partial(iter, self.data), None)
        number = num_seen = 0
        for passes_over, one_pass in enumerate(passes):
            held = next(one_pass, None)
            if held is None:  # used up, though it gives itself out as new
                return
            while held is not None:
                following = next(one_pass, None)
                arguments = _arguments(held)
                _check_like(arguments, self.first)
                num_seen += len(jax.tree.leaves(arguments)[0])
                if following is None and passes_over == 0:
                    self._check_count(num_seen)
                if number >= step:
                    yield Batch(arguments, following is None)
                number, held = number + 1, following

    def _check_count(self, num_seen: int) -> None:
        """Tell of a number of rows that a pass contradicts; a last batch may have been dropped."""
        if abs(num_seen - self.num_rows) >= len(jax.tree.leaves(self.first)[0]):
            warnings.warn(
                f"a pass over `data` gave {num_seen} rows, and `num_rows`, by which the log "
                f"likelihood is scaled, is {self.num_rows}.",
                RuntimeWarning,
                stacklevel=2,
            )


def as_stream(
    data: Any, batch_size: int | None, num_rows: int | None, rng_key: jax.Array
) -> RowStream | IterableStream:
    """The stream behind `data`.

    Raises
    ------
    ValueError
        If it is neither arrays, a `RowSource` nor an iterable of batches, or what comes beside it
        does not go with it.
    """
    if isinstance(data, RowSource) or are_arrays(data):
        if batch_size is None or num_rows is not None:
            raise ValueError(
                "`data` holds arrays (or is a RowSource): `batch_size` says how many rows a step "
                f"takes, and `num_rows` is known; got {batch_size=}, {num_rows=}."
            )
        return RowStream(data, batch_size, rng_key)
    is_other = isinstance(data, Mapping | str) or hasattr(data, "shape")
    if is_other or not isinstance(data, Iterable) or isinstance(data, tuple):
        raise ValueError(
            "`data` must be the model's arguments, as a tuple of arrays or as a dictionary of them "
            "by name, a `ppl_bnn.RowSource`, or an iterable of such tuples, one for each batch; "
            f"got {kinds(data)} (`to_numpy()` makes arrays of pandas')."
        )
    if batch_size is not None:
        raise ValueError(
            f"`data` is an iterable of batches, which have their size; got {batch_size=}."
        )
    return IterableStream(data, num_rows)


def _arguments(batch: Any) -> Arguments:
    if not are_arrays(batch):
        raise ValueError(
            "each batch of `data` must be the model's arguments, as a tuple of arrays or as a "
            f"dictionary of them by name; got {kinds(batch)}."
        )
    batch = _on_host(batch)
    return ((), dict(batch)) if isinstance(batch, Mapping) else (tuple(batch), {})


def _check_like(arguments: Arguments, first: Arguments) -> None:
    """Refuse a batch whose rows are not like those of the first."""
    treedef: Any = jax.tree.structure(arguments)
    shapes = [leaf.shape for leaf in jax.tree.leaves(arguments)]
    expected = [leaf.shape for leaf in jax.tree.leaves(first)]
    lengths = {shape[0] for shape in shapes}
    same_rows = [shape[1:] for shape in shapes] == [shape[1:] for shape in expected]
    is_like = same_rows and treedef == jax.tree.structure(first)
    if not is_like or len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"a batch of `data` holds arrays of shapes {shapes}, after {expected}: all batches "
            "must hold the same arguments, with rows of the same shapes, as many in each"
        )


def _on_host(values: Any) -> Any:
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, values
    )


def _after(first: Arguments, rest: Iterator) -> Iterator:
    args, kwargs = first
    yield kwargs or args
    yield from rest
