"""Arithmetic on positions, dictionaries of arrays by site, in each array's own dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

Tree = dict[str, jax.Array]


def scalar(value: Any) -> jax.Array:
    """A number as an array of the default float dtype, shape ()."""
    return jnp.asarray(value, jnp.result_type(float))


def times(factor: Any, leaf: jax.Array) -> jax.Array:
    """Product in the dtype of `leaf`."""
    return jnp.asarray(factor, leaf.dtype) * leaf


def by_site(value: Any, like: Tree) -> dict[str, Any]:
    """The value for each site: `value` itself if it is a dictionary, else the same for all."""
    if not isinstance(value, Mapping):
        return dict.fromkeys(like, value)
    if set(value) != set(like):
        raise ValueError(
            f"values were given for the sites {sorted(value)}; the position has {sorted(like)}: "
            "give one for each of these."
        )
    return dict(value)


def normal_like(rng_key: jax.Array, like: Mapping[str, Any]) -> Tree:
    """Independent standard normals, of the shapes and types of `like`."""
    # a single array gets the key itself: making one more costs as much as hundreds of numbers
    keys = jax.random.split(rng_key, len(like)) if len(like) > 1 else [rng_key]
    return {
        name: jax.random.normal(key, leaf.shape, leaf.dtype)
        for key, (name, leaf) in zip(keys, like.items(), strict=True)
    }


def dot(left: Tree, right: Tree) -> jax.Array:
    """Sum over all elements of the product, shape ()."""
    dtype = jnp.result_type(float)
    parts = (jnp.sum(leaf * right[name], dtype=dtype) for name, leaf in left.items())
    return sum(parts, jnp.zeros((), dtype))


def num_elements(tree: Tree) -> int:
    """Number of elements of all sites together, the dimension d."""
    return sum(leaf.size for leaf in tree.values())


def noise_variance(
    target: Tree, weight: jax.Array | Tree, noise_estimate: Any | None
) -> tuple[Tree, jax.Array]:
    """Variance of the noise to inject, where the gradient brings some already.

    Parameters
    ----------
    target : dict of arrays
        Variance that the dynamics ask for.
    weight : jax.Array or dict of arrays
        Of the variance of the gradient's own noise.
    noise_estimate : float, dict of arrays or None
        Variance of the gradient's noise, of every coordinate.

    Returns
    -------
    dict of arrays, jax.Array
        ``target - weight * noise_estimate``, not below 0; whether that bound was met anywhere,
        shape ().
    """
    if noise_estimate is None:
        return target, jnp.zeros((), bool)
    weights, estimates = by_site(weight, target), by_site(noise_estimate, target)
    rest = {
        name: leaf
        - jnp.asarray(weights[name], leaf.dtype) * jnp.asarray(estimates[name], leaf.dtype)
        for name, leaf in target.items()
    }
    is_clipped = jnp.any(jnp.stack([jnp.any(leaf < 0) for leaf in rest.values()]))
    return jax.tree.map(lambda leaf: jnp.maximum(leaf, 0), rest), is_clipped
