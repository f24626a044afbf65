"""A model's data on its devices, where compiled transitions read them without holding them.

NumPyro's `MCMC` closes over the model's arguments, which makes every array a constant of the
compiled program: a full copy on each device, whatever its sharding was. Here arrays live in
`jax.Ref`s, which JAX passes to a compiled program as arguments. Under `pmap` (NumPyro's
``chain_method="parallel"``), which cannot take them, each transition fetches them from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ppl_bnn.mesh import DATA, size
from ppl_bnn.rows import Rows, is_array


def pad_rows(leaf: Any, multiple: int) -> Any:
    """Repeat the first row until the number of rows is divisible; copies get weight zero later."""
    missing = -leaf.shape[0] % multiple
    if not missing:
        return leaf
    numpy = np if isinstance(leaf, np.ndarray) else jnp
    return numpy.concatenate([leaf, numpy.repeat(leaf[:1], missing, axis=0)])


class Data:
    """The arguments of a model, placed once and read by any number of compiled programs.

    Parameters
    ----------
    args, kwargs
        What the model is called with; arrays are placed on devices, all else is left as it is.
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
        leaves = [_place(leaf, row, mesh) for leaf, row in pairs]
        self.fingerprint = fingerprint(leaves)
        self.traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        # a Ref holds a copy of its own, so `leaves` is not kept beside it
        self.held = leaves if self.traced else [_reference(leaf) for leaf in leaves]
        self.host: list[Any] | None = None

    def is_from(self, args: tuple, kwargs: dict) -> bool:
        """Whether these are the very objects that were placed."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        return self.treedef == treedef and all(
            a is b or (not is_array(a) and not is_array(b) and a == b)
            for a, b in zip(leaves, self.source, strict=True)
        )

    def read(self) -> list[Any]:
        """The placed leaves, as values of the program that is being traced."""
        if jax.sharding.get_abstract_mesh().manual_axes and not self.traced:  # pmap
            return self._fetch()
        return [held[...] if isinstance(held, jax.Ref) else held for held in self.held]

    def _fetch(self) -> list[Any]:
        if self.host is None:
            with jax.ensure_compile_time_eval():
                self.host = [
                    np.asarray(held[...]) if isinstance(held, jax.Ref) else held
                    for held in self.held
                ]
        host = self.host
        which = [i for i, held in enumerate(self.held) if isinstance(held, jax.Ref)]
        shapes = [jax.ShapeDtypeStruct(host[i].shape, host[i].dtype) for i in which]
        fetched = jax.pure_callback(lambda: [host[i] for i in which], shapes)
        read = list(host)
        for i, leaf in zip(which, fetched, strict=True):
            read[i] = leaf
        return read


def _reference(leaf: Any) -> Any:
    return jax.new_ref(leaf) if isinstance(leaf, jax.Array) else leaf


def _place(leaf: Any, is_row: bool, mesh: Mesh | None) -> Any:
    if not is_array(leaf):
        return leaf
    if mesh is None:
        return jnp.asarray(leaf)
    spec = PartitionSpec(DATA) if is_row else PartitionSpec()
    if is_row:
        leaf = pad_rows(leaf, size(mesh, DATA))
    if isinstance(leaf, jax.core.Tracer):
        return leaf
    return jax.device_put(leaf, NamedSharding(mesh, spec))


def fingerprint(leaves: Sequence[Any]) -> jax.Array:
    """A checksum of all arrays, shape (), by which stale caches of another data set are known."""
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    return _checksum(arrays)


@jax.jit
def _checksum(arrays: list[jax.Array]) -> jax.Array:
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
