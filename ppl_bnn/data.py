"""A model's data on its devices, where compiled transitions read them without holding them.

NumPyro's `MCMC` closes over the model's arguments, which makes every array a constant of the
compiled program: a full copy on each device, whatever its sharding was. Here arrays live in
`jax.Ref`s, which JAX passes to a compiled program as arguments. Under `pmap` (NumPyro's
``chain_method="parallel"``), which cannot take them, each transition fetches them from the host.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ppl_bnn.mesh import DATA, size
from ppl_bnn.rows import Rows, concretely, is_array


def pad_rows(leaf: Any, multiple: int) -> Any:
    """Repeat the first row until the number of rows is divisible; copies get weight zero later."""
    missing = -leaf.shape[0] % multiple
    if not missing:
        return leaf
    numpy = np if isinstance(leaf, np.ndarray) else jnp
    return numpy.concatenate([leaf, numpy.repeat(leaf[:1], missing, axis=0)])


CONSTANTS = bool | int | float | complex | str | bytes


class Data:
    """The arguments of a model, placed once and read by any number of compiled programs.

    Parameters
    ----------
    args, kwargs
        What the model is called with. Arrays are placed on devices; numbers, strings and flags
        stay what they are.
    rows : Rows, optional
        Which arrays hold rows; needed with a `mesh`.
    mesh : jax.sharding.Mesh, optional
        Rows are divided over its ``"data"`` axis, padded where they do not divide.
    """

    def __init__(self, args: tuple, kwargs: dict, rows: Rows | None, mesh: Mesh | None):
        self.source, treedef = jax.tree.flatten((args, kwargs))
        self.treedef: Any = treedef
        is_row = rows.is_row if rows is not None else (False,) * len(self.source)
        pairs = zip(self.source, is_row, strict=True)
        arrays = [_place(leaf, row, mesh) for leaf, row in pairs if is_array(leaf)]
        constants = [repr(leaf) for leaf in self.source if not is_array(leaf)]
        self.fingerprint = _checksum(arrays) ^ jnp.uint32(zlib.crc32(repr(constants).encode()))
        self.traced = any(isinstance(array, jax.core.Tracer) for array in arrays)
        # a Ref holds a copy of its own, so the array is not kept beside it
        self.arrays = arrays if self.traced else []
        self.refs = [] if self.traced else [jax.new_ref(array) for array in arrays]
        self.host: list[np.ndarray] | None = None
        self.checksums = _host_checksums(self.source)

    def check_unchanged(self) -> None:
        """Refuse NumPy arrays that were changed in place since they were placed."""
        if _host_checksums(self.source) != self.checksums:
            raise ValueError(
                "the data were changed in place since the last run with the same arrays, of which "
                "NumPyro keeps the compiled program: pass a copy (`x.copy()`), which is new data."
            )

    def is_from(self, args: tuple, kwargs: dict) -> bool:
        """Whether these are the very objects that were placed."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        return self.treedef == treedef and all(
            a is b or (isinstance(a, CONSTANTS) and type(a) is type(b) and a == b)
            for a, b in zip(leaves, self.source, strict=True)
        )

    def read(self) -> list[jax.Array]:
        """The placed arrays, as values of the program that is being traced."""
        if self.traced:
            return self.arrays
        if jax.sharding.get_abstract_mesh().manual_axes:  # pmap
            return self._fetch()
        return [ref[...] for ref in self.refs]

    def fill(self, arrays: Sequence[jax.Array]) -> list[Any]:
        """All leaves of the model's arguments, those that are no arrays in their places."""
        following = iter(arrays)
        return [next(following) if is_array(leaf) else leaf for leaf in self.source]

    def _fetch(self) -> list[jax.Array]:
        if self.host is None:
            with concretely():
                self.host = [np.asarray(ref[...]) for ref in self.refs]
        host = self.host
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in host]
        return jax.pure_callback(lambda: host, shapes)


def _host_checksums(leaves: Sequence[Any]) -> list[int]:
    hosted = [leaf for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.dtype != object]
    return [zlib.crc32(np.ascontiguousarray(leaf).data) for leaf in hosted]


def _place(array: Any, is_row: bool, mesh: Mesh | None) -> jax.Array:
    if mesh is None or isinstance(array, jax.core.Tracer):
        return jnp.asarray(array)
    if is_row:
        array = pad_rows(array, size(mesh, DATA))
    spec = PartitionSpec(DATA) if is_row else PartitionSpec()
    return jax.device_put(array, NamedSharding(mesh, spec))


@jax.jit
def _checksum(arrays: list[jax.Array]) -> jax.Array:
    """Checksum of all arrays, shape (), by which caches of another data set are known."""
    total = jnp.uint32(len(arrays))
    for array in arrays:
        bits = array
        if jnp.issubdtype(array.dtype, jnp.inexact):
            word = jnp.uint16 if array.dtype.itemsize == 2 else jnp.uint32
            bits = jax.lax.bitcast_convert_type(array, word)  # 64 bits: two words an element
        bits = jnp.ravel(bits).astype(jnp.uint32)
        place = jnp.arange(bits.size, dtype=jnp.uint32)
        total = total * jnp.uint32(16777619) + jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)
    return total
