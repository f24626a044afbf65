"""Quantiles of an equal-weight mixture of NumPyro distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_bnn.parameters import unwrap


class MixtureQuantiles:
    """Solves for the quantiles of mixtures over draws, each point on its own.

    Parameters
    ----------
    levels
        Levels in (0, 1), shape (quantile,).

    Notes
    -----
    Bisection. The mixture's quantile lies between the smallest and the largest quantile of its
    components; where NumPyro does not have these, an interval around 0 is doubled until it fits.
    The first call compiles; later ones must be of distributions of the same kind and shape.
    """

    def __init__(self, levels: np.ndarray):
        self.levels = levels
        self._solve: Callable | None = None

    def __call__(self, distributions: Any) -> np.ndarray:
        """Quantiles of one mixture at each point.

        Parameters
        ----------
        distributions
            A NumPyro distribution whose arrays have an additional leading axis of draws, as a
            vmap that returns a distribution makes it.

        Returns
        -------
        ndarray
            Shape (quantile, ...), with the batch and event axes of one draw. For integer-valued
            distributions the smallest integer whose cumulative probability reaches the level.

        Raises
        ------
        ValueError
            If the distribution has no cumulative distribution function.
        """
        leaves, structure = jax.tree.flatten(distributions)
        if self._solve is None:
            # As an argument of jit, the structure would have to be hashable; NumPyro's is not.
            self._solve = jax.jit(
                lambda leaves, level: _solve(jax.tree.unflatten(structure, leaves), level)
            )
        try:
            return np.stack([np.asarray(self._solve(leaves, level)) for level in self.levels])
        except NotImplementedError as error:
            name = type(unwrap(distributions)).__name__
            raise ValueError(
                f"a {name} has no cumulative distribution function in NumPyro, so its mixture's "
                "quantiles cannot be solved for; sample it with numpyro.infer.Predictive instead"
            ) from error


def _solve(distributions: Any, level: jax.Array) -> jax.Array:
    shape = distributions.batch_shape + distributions.event_shape
    support = unwrap(distributions).support
    discrete = support is not None and support.is_discrete

    def over_draws(fn: Any) -> jax.Array:
        return jax.vmap(lambda d: jnp.broadcast_to(fn(d), shape))(distributions)

    def reached(value: jax.Array) -> jax.Array:
        value = jnp.floor(value) if discrete else value
        # Below the support some cumulative functions are NaN, which counts as "not yet".
        return over_draws(lambda d: unwrap(d).cdf(value)).mean(axis=0) >= level

    try:
        quantiles = over_draws(lambda d: unwrap(d).icdf(level))
        low, high = quantiles.min(axis=0), quantiles.max(axis=0)
    except (NotImplementedError, ImportError):  # some need an optional package
        low, high = _bracket(reached, shape)
    if discrete:
        low, high = jnp.floor(low) - 1, jnp.ceil(high)

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = low + (high - low) / 2
        enough = reached(middle)
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    steps = 2 * jnp.finfo(high.dtype).nmant
    high = jax.lax.fori_loop(0, steps, halve, (low, high))[1]
    return jnp.floor(high) if discrete else high


def _bracket(reached: Callable, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """An interval at whose lower end the level is not yet reached and at whose upper end it is."""
    one = jnp.ones(shape)
    limit = jnp.finfo(one.dtype).max / 4

    def double(ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        return jnp.where(reached(low), 2 * low, low), jnp.where(reached(high), high, 2 * high)

    def unfinished(ends: tuple[jax.Array, jax.Array]) -> jax.Array:
        low, high = ends
        return jnp.any((reached(low) & (low > -limit)) | (~reached(high) & (high < limit)))

    return jax.lax.while_loop(unfinished, double, (-one, one))
