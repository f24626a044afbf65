"""Rows that stay on the host, in memory or on disk, and come to the device a batch at a time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from ppl_bnn.checks import refuse_cut_integers

ROWS_COMPARED = 16


class Fetched(NamedTuple):
    """The model's arguments for some rows, as values of a compiled program."""

    leaves: list[jax.Array]
    is_read: jax.Array  # whether they could be read, shape ()


class RowSource:
    """A model's data, read by the numbers of their rows whenever a step needs some.

    Batches go by row numbers and not by the turn of an iterator, so that each chain has batches of
    its own, whatever the chain method, and the state of a chain says where it is in the data: a
    resumed run reads what an uninterrupted one would have read.

    Parameters
    ----------
    fetch : callable
        From row numbers, an integer array of shape (B,) with repetitions, to the model's arguments
        for these rows: a tuple of arrays, or a dictionary of them by the arguments' names, each of
        shape (B, ...). It is called from inside compiled programs, by threads of their own, one at
        a time; it must use NumPy and not JAX, and give the same rows for the same numbers.
    num_rows : int
        Number of all rows, N.

    Raises
    ------
    ValueError
        If there are no rows, or `fetch` does not give arrays with a row for each number.

    Examples
    --------
    >>> x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    >>> source = RowSource(lambda index: (x[index] / 10, y[index]), num_rows=6)
    """

    def __init__(self, fetch: Callable[[np.ndarray], Any], num_rows: int):
        if not callable(fetch):
            raise ValueError(
                "`fetch` must be a function from row numbers to the model's arguments, got "
                f"{type(fetch).__name__}."
            )
        if num_rows < 1:
            raise ValueError(f"`num_rows` is {num_rows}: there are no rows to learn from.")
        self.fetch, self.num_rows = fetch, int(num_rows)
        first = self._fetch(np.zeros(2, np.int32))
        self.is_mapping = isinstance(first, Mapping)
        leaves, treedef = jax.tree.flatten(first)
        self.treedef: Any = treedef
        self.row_shapes = [_row_shape(leaf) for leaf in leaves]
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"fetch": self.fetch, "num_rows": self.num_rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def arguments(self, index: np.ndarray) -> tuple[tuple, dict[str, Any]]:
        """The model's arguments for some rows, on the host: positional, by name."""
        rows = self._fetch(index)
        return ((), dict(rows)) if self.is_mapping else (tuple(rows), {})

    def take(self, index: jax.Array) -> Fetched:
        """Rows by number, inside a compiled program, with one call to the host for all chains.

        Where they cannot be read the caller's chain can stop and keep what it has: the cause is
        given as a warning, and `is_read` is false.
        """
        shapes = [jax.ShapeDtypeStruct((*index.shape, *s.shape), s.dtype) for s in self.row_shapes]
        is_read = jax.ShapeDtypeStruct(index.shape[:-1], jnp.bool_)
        return Fetched(
            *jax.pure_callback(self._read, (shapes, is_read), index, vmap_method="broadcast_all")
        )

    def _read(self, index: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """Host side of `take`; `index` has shape (..., B), with leading axes of chains."""
        index = np.asarray(index)
        batch_shape = index.shape[:-1]
        try:
            with self._lock:
                leaves, treedef = jax.tree.flatten(self._fetch(index.ravel()))
            got = [_row_shape(leaf) for leaf in leaves]
            if treedef != self.treedef or got != self.row_shapes:
                raise ValueError(f"rows came as {got}, after {self.row_shapes} at first")
            for number, leaf in enumerate(leaves):
                refuse_cut_integers(f"array {number}", leaf)
            rows = [
                leaf.astype(s.dtype).reshape(*index.shape, *s.shape)
                for leaf, s in zip(leaves, self.row_shapes, strict=True)
            ]
            return rows, np.ones(batch_shape, bool)
        except Exception as error:
            warnings.warn(
                f"rows {index.ravel()[:4].tolist()}, ... could not be read: "
                f"{type(error).__name__}: {error}. Chains stop here and keep what they have drawn.",
                RuntimeWarning,
                stacklevel=2,
            )
            rows = [np.zeros((*index.shape, *s.shape), s.dtype) for s in self.row_shapes]
            return rows, np.zeros(batch_shape, bool)

    def _fetch(self, index: np.ndarray) -> Any:
        rows = self.fetch(index)
        if not isinstance(rows, tuple | list | Mapping) or not len(rows):
            raise ValueError(
                "`fetch` must give the model's arguments as a tuple, or as a dictionary by name, "
                f"got {type(rows).__name__}."
            )
        rows = jax.tree.map(np.asarray, dict(rows) if isinstance(rows, Mapping) else tuple(rows))
        for leaf in jax.tree.leaves(rows):
            if leaf.shape[:1] != index.shape:
                raise ValueError(
                    f"`fetch` was asked for {len(index)} rows and gave an array of shape "
                    f"{leaf.shape}."
                )
        return rows


def _row_shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    """Shape of a row, and the type that JAX gives it."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))


def refuse_row_statistics(model: Callable, source: RowSource) -> None:
    """Refuse deterministic sites that depend on the rows, of which a draw never sees all.

    Raises
    ------
    ValueError
        Names those that differ between the first rows and half as many.
    """
    found = []
    for num_rows in (ROWS_COMPARED, ROWS_COMPARED // 2):
        args, kwargs = source.arguments(np.arange(min(num_rows, source.num_rows)))
        trace = handlers.trace(handlers.seed(model, 0)).get_trace(*args, **kwargs)
        found.append({n: s["value"] for n, s in trace.items() if s["type"] == "deterministic"})
    names = [
        name
        for name, value in found[0].items()
        if name not in found[1] or not np.array_equal(value, found[1][name], equal_nan=True)
    ]
    if names:
        raise ValueError(
            f"the deterministic sites {sorted(names)} depend on the rows, and with `batches` a "
            "draw never sees all rows: leave them out."
        )


def kinds(batches: Any) -> str:
    """What `batches` is, and what is in it."""
    name = type(batches).__name__
    if isinstance(batches, Mapping):
        return f"{name} of " + ", ".join(f"{k}: {type(v).__name__}" for k, v in batches.items())
    if isinstance(batches, tuple | list):
        return f"{name} of ({', '.join(type(value).__name__ for value in batches)})"
    return name


def are_arrays(values: Any) -> bool:
    """Whether these are arrays with rows, by position or by name; each may be a tree of them.

    In a list they are arrays themselves, since a list of trees may be one of batches.
    """
    if isinstance(values, list):
        return bool(values) and all(map(_has_rows, values))
    if not isinstance(values, tuple | Mapping):
        return False
    leaves = jax.tree.leaves(values)
    return bool(leaves) and all(map(_has_rows, leaves))


def _has_rows(value: Any) -> bool:
    # pandas' take labels in brackets and not places, scipy's sparse ones give sparse rows, and
    # masks would be lost
    is_other = hasattr(value, "to_numpy") or hasattr(value, "toarray")
    is_other |= isinstance(value, np.ma.MaskedArray)
    return hasattr(value, "dtype") and bool(getattr(value, "shape", ())) and not is_other


def as_source(batches: Any, name: str = "batches") -> RowSource:
    """Rows of arrays on the host, by position or by name, or a source as it is.

    Arrays are whatever has a `shape` and takes row numbers in brackets: NumPy's, memory-mapped
    ones, data sets of h5py and Zarr. An argument may be a tuple or dictionary of them.

    Raises
    ------
    ValueError
        If it is none of these, or the arrays differ in their numbers of rows.
    """
    if isinstance(batches, RowSource):
        return batches
    if not are_arrays(batches):
        raise ValueError(
            f"`{name}` must be the model's arguments, as a tuple of arrays or as a dictionary of "
            "them by name, or a `ppl_bnn.RowSource`, which reads rows by their numbers; got "
            f"{kinds(batches)} (`to_numpy()` makes arrays of pandas'). An iterator does not do: it "
            "has one position, and every chain needs its own."
        )
    lengths = [array.shape[0] for array in jax.tree.leaves(batches)]
    if len(set(lengths)) > 1:
        raise ValueError(f"the arrays of `{name}` have {lengths} rows; they must have as many.")

    def fetch(index: np.ndarray) -> Any:
        # ascending and each once: what h5py asks for, and kind to disks
        rows, places = np.unique(index, return_inverse=True)
        return jax.tree.map(lambda array: np.asarray(array[rows])[places], batches)

    return RowSource(fetch, lengths[0])
