"""The sites of a small position as one vector, which steps handle faster than many arrays."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from ppl_bnn.inference.tree_math import Tree, normal_like

ALL = "all sites"
MOST_PACKED = 2**14  # elements; beyond, copying costs more than the calls it saves


class Packing:
    """Turns every dictionary by site into a dictionary with a single vector, and back.

    Cores of algorithms work on dictionaries of arrays, whatever their names, so they run on either
    form. Sites of different types, and large ones, stay as they are.

    Parameters
    ----------
    shapes : dict of jax.ShapeDtypeStruct
        Of the position of one chain, by site.
    """

    def __init__(self, shapes: Mapping[str, Any]):
        self.names = sorted(shapes)
        self.shapes = {name: tuple(shapes[name].shape) for name in self.names}
        self.sizes = [prod(self.shapes[name]) for name in self.names]
        self.dtypes = {name: shapes[name].dtype for name in self.names}
        self.size = sum(self.sizes)
        is_alike = len(set(self.dtypes.values())) == 1
        self.is_packed = is_alike and self.size <= MOST_PACKED

    def pack(self, tree: Any) -> Any:
        """The same tree with vectors in it; axes before those of a site stay in front."""

        def join(sites: Any) -> Any:
            if not self._is_by_site(sites):
                return sites
            leaves = [sites[name] for name in self.names]
            lead = jnp.shape(leaves[0])[: jnp.ndim(leaves[0]) - len(self.shapes[self.names[0]])]
            vectors = [jnp.reshape(leaf, (*lead, -1)) for leaf in leaves]
            return {ALL: jnp.concatenate(vectors, axis=-1)}

        return jax.tree.map(join, tree, is_leaf=self._is_by_site) if self.is_packed else tree

    def unpack(self, tree: Any) -> Any:
        """What `pack` was given."""

        def is_vector(node: Any) -> bool:
            return isinstance(node, Mapping) and set(node) == {ALL}

        def part(node: Any) -> Any:
            if not is_vector(node):
                return node
            vector = node[ALL]
            parts = jax.lax.split(vector, self.sizes, axis=vector.ndim - 1)
            return {
                name: jnp.reshape(values, (*vector.shape[:-1], *self.shapes[name]))
                for name, values in zip(self.names, parts, strict=True)
            }

        return jax.tree.map(part, tree, is_leaf=is_vector) if self.is_packed else tree

    def normals(self, rng_key: jax.Array, num: int) -> Tree:
        """Standard normals for `num` positions, packed if these are."""
        shapes = {ALL: (self.size,)} if self.is_packed else self.shapes
        dtypes = self.dtypes | {ALL: self.dtypes[self.names[0]]}
        like = {n: jax.ShapeDtypeStruct((num, *shapes[n]), dtypes[n]) for n in shapes}
        return normal_like(rng_key, like)

    def values(self, value: Any) -> Any:
        """Packs what a user gives for each site, of shapes that broadcast to the sites'."""
        if not self._is_by_site(value):
            return value
        return self.pack({n: jnp.broadcast_to(value[n], self.shapes[n]) for n in self.names})

    def first_not_finite(self, position: Tree) -> jax.Array:
        """Number of the first site, by name, whose value is not finite; -1 if all are."""
        if not self.is_packed:
            finite = [jnp.all(jnp.isfinite(position[name])) for name in self.names]
            is_bad = ~jnp.stack(finite)
            return jnp.where(jnp.any(is_bad), jnp.argmax(is_bad), -1).astype(jnp.int32)
        is_bad = ~jnp.isfinite(position[ALL])
        ends = jnp.asarray(list(accumulate(self.sizes)))
        site = jnp.sum(ends <= jnp.argmax(is_bad))
        return jnp.where(jnp.any(is_bad), site, -1).astype(jnp.int32)

    def is_finite(self, position: Tree) -> jax.Array:
        """Whether all values are finite, shape ()."""
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in position.values()]))

    def _is_by_site(self, node: Any) -> bool:
        return isinstance(node, Mapping) and set(node) == set(self.names)
