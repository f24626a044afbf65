"""One chain or many side by side: the same code for both.

NumPyro hands a kernel one chain (sequential, parallel, or mapped by the caller) or, with
``chain_method="vectorized"``, all of them with a leading axis on every field of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ppl_bnn.mesh import CHAINS, size


class Chains:
    """How to run a function over the chains of a state.

    Parameters
    ----------
    batched : bool
        Whether there is a leading axis of chains.
    mesh : jax.sharding.Mesh, optional
        Chains are spread over its ``"chains"`` axis.
    """

    def __init__(self, batched: bool, mesh: Mesh | None):
        self.batched, self.mesh = batched, mesh
        self.is_spread = batched and size(mesh, CHAINS) > 1

    def first(self, tree: Any) -> Any:
        """Values of the first chain; those that all share, where all share them."""
        return jax.tree.map(lambda x: x[0], tree) if self.batched else tree

    def stacked(self, tree: Any) -> Any:
        """Values with a leading axis of chains, be it of length one."""
        return tree if self.batched else jax.tree.map(lambda x: x[None], tree)

    def split(self, rng_key: jax.Array, num: int) -> list[jax.Array]:
        """New keys for each chain: `num` batches of them."""
        if not self.batched:
            return list(jax.random.split(rng_key, num))
        keys = jax.vmap(partial(jax.random.split, num=num))(rng_key)
        return [keys[:, k] for k in range(num)]

    def commit(self, tree: Any) -> Any:
        """Tie arrays to their devices, as the outputs of a transition are.

        Else the first transition and all later ones are two programs to compile.
        """
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree)):
            return tree
        if self.mesh is None:
            return jax.tree.map(lambda x: jax.device_put(x, x.sharding), tree)
        spec = PartitionSpec(CHAINS) if self.is_spread else PartitionSpec()
        return jax.device_put(tree, NamedSharding(self.mesh, spec))

    def map(self, function: Callable, in_axes: Any = 0) -> Callable:
        """`jax.vmap` over chains, spread over devices if need be."""
        if not self.batched:
            return function
        mesh = self.mesh
        if mesh is None or not self.is_spread:
            return jax.vmap(function, in_axes=in_axes)
        mapped = jax.vmap(function, in_axes=in_axes, spmd_axis_name=CHAINS)
        spread = NamedSharding(mesh, PartitionSpec(CHAINS))

        def place(argument: Any, axis: int | None) -> Any:
            if axis is None:
                return argument
            return jax.lax.with_sharding_constraint(argument, spread)

        def of_spread(*args: Any) -> Any:
            axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
            return mapped(*map(place, args, axes))

        return of_spread


def fit(new: jax.Array, old: jax.Array) -> jax.Array:
    """The value in the shape and type that the loop around a transition carries."""
    return jnp.broadcast_to(new, old.shape).astype(old.dtype)
