"""Inverse mass matrices: diagonal, dense, or dense for groups of sites.

A position is a dictionary of arrays by site. The metric is kept in the same shape, so that a
diagonal one costs an elementwise product and no ravelling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

Tree = dict[str, jax.Array]


class Metric(NamedTuple):
    """A Euclidean metric; sites are in `diagonal`, or in exactly one group of `dense`."""

    diagonal: Tree  # site -> inverse mass of each element, shape of the site
    dense: dict[tuple[str, ...], jax.Array]  # sites -> inverse mass matrix, shape (d, d)
    factor: dict[tuple[str, ...], jax.Array]  # sites -> F with F @ F.T = mass matrix


def make_metric(diagonal: Tree, dense: Mapping[tuple[str, ...], jax.Array] | None = None) -> Metric:
    """Metric with the dense blocks factorised."""
    dense = dict(dense or {})
    factor = {}
    for names, matrix in dense.items():
        # L being the Cholesky factor of the inverse mass matrix, the mass matrix is inv(L).T inv(L)
        lower = jnp.linalg.cholesky(matrix)
        eye = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
        factor[names] = jax.scipy.linalg.solve_triangular(lower, eye, lower=True).T
    return Metric(diagonal, dense, factor)


def _blockwise(
    metric: Metric,
    tree: Tree,
    on_diagonal: Callable[[jax.Array, jax.Array], jax.Array],
    blocks: Mapping[tuple[str, ...], jax.Array],
) -> Tree:
    """Apply the diagonal function to free sites, and a matrix product to the grouped ones."""
    out = {name: on_diagonal(value, tree[name]) for name, value in metric.diagonal.items()}
    for names, matrix in blocks.items():
        flat, unravel = ravel_pytree([tree[name] for name in names])
        out.update(zip(names, unravel(matrix @ flat), strict=True))
    return {name: out[name] for name in tree}


def velocity(metric: Metric, momentum: Tree) -> Tree:
    """Inverse mass matrix times momentum."""
    return _blockwise(metric, momentum, lambda inverse, p: inverse * p, metric.dense)


def sample_momentum(
    rng_key: jax.Array, metric: Metric, position: Tree, temperature: float = 1.0
) -> Tree:
    """Momentum from N(0, temperature * M)."""
    keys = jax.random.split(rng_key, len(position))
    normal = {
        name: jax.random.normal(key, value.shape, value.dtype)
        for key, (name, value) in zip(keys, position.items(), strict=True)
    }
    momentum = _blockwise(metric, normal, lambda inverse, z: z / jnp.sqrt(inverse), metric.factor)
    return jax.tree.map(lambda p: p * jnp.sqrt(jnp.asarray(temperature, p.dtype)), momentum)


def kinetic_energy(metric: Metric, momentum: Tree) -> jax.Array:
    """Half of p.T @ inverse mass @ p, shape ()."""
    moved = velocity(metric, momentum)
    return 0.5 * sum((jnp.sum(p * moved[name]) for name, p in momentum.items()), jnp.zeros(()))


def kinetic_difference(metric: Metric, new: Tree, old: Tree) -> jax.Array:
    """Kinetic energy of `new` minus that of `old`, without subtracting two large numbers."""
    # the difference of squares, (a - b) * inverse mass * (a + b) / 2
    moved = velocity(metric, jax.tree.map(jnp.subtract, new, old))
    parts = (jnp.sum((new[name] + old[name]) * moved[name]) for name in new)
    return 0.5 * sum(parts, jnp.zeros(()))


def parse_inverse_mass_matrix(value: Any, position: Mapping[str, Any]) -> Metric:
    """Metric from an array or a dictionary, in NumPyro's conventions.

    Parameters
    ----------
    value : array or dict
        A vector: the diagonal over all sites, in the order of their names, ravelled. A matrix:
        the same, dense. A dictionary from tuples of site names to a vector or a matrix; sites
        that it does not name get inverse mass 1.
    position : dict of arrays
        An unconstrained position, for its shapes.

    Raises
    ------
    ValueError
        If a shape does not fit, a site is unknown or named twice, or an entry is not positive.
    """
    if not isinstance(value, Mapping):
        value = {tuple(sorted(position)): value}
    diagonal = {name: jnp.ones(leaf.shape, leaf.dtype) for name, leaf in position.items()}
    dense = {}
    seen: set[str] = set()
    for names, block in value.items():
        if not isinstance(names, tuple):
            raise ValueError(
                f"`inverse_mass_matrix` has the key {names!r}; keys must be tuples of site names, "
                f"for example ({names!r},)."
            )
        unknown = set(names) - set(position)
        if unknown or seen & set(names):
            raise ValueError(
                f"`inverse_mass_matrix` names {sorted(unknown or seen & set(names))}, which "
                f"{'is no latent site' if unknown else 'is named twice'}; the latent sites are "
                f"{sorted(position)}."
            )
        seen |= set(names)
        flat, unravel = ravel_pytree([position[name] for name in names])
        block = jnp.asarray(block, flat.dtype)
        if block.shape == (flat.size,):
            if not bool(jnp.all((block > 0) & jnp.isfinite(block))):
                raise ValueError(f"`inverse_mass_matrix` of {names} must be positive and finite.")
            diagonal.update(zip(names, unravel(block), strict=True))
        elif block.shape == (flat.size, flat.size):
            if not bool(jnp.all(jnp.isfinite(jnp.linalg.cholesky(block)))):
                raise ValueError(f"`inverse_mass_matrix` of {names} is not positive definite.")
            dense[names] = block
            for name in names:
                del diagonal[name]
        else:
            raise ValueError(
                f"`inverse_mass_matrix` of {names} has shape {block.shape}; those sites have "
                f"{flat.size} "
                f"elements, so ({flat.size},) or ({flat.size}, {flat.size}) was expected."
            )
    return make_metric(diagonal, dense)


def largest_scale(metric: Metric, scale: Mapping[str, np.ndarray]) -> float:
    """Square root of the largest eigenvalue of M times diag(scale ** 2)."""
    squares = [np.max(scale[n] ** 2 / np.asarray(x)) for n, x in metric.diagonal.items()]
    for names, factor in metric.factor.items():
        flat = np.concatenate([np.ravel(scale[name]) for name in names])
        # eigenvalues of (F.T S)(F.T S).T, S being diag(scale), are those of M S^2
        squares.append(np.linalg.norm(np.asarray(factor).T * flat, ord=2) ** 2)
    return math.sqrt(max(squares))
