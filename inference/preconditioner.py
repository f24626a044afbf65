"""Diagonal preconditioners G(theta): SGLD's step sizes by coordinate, SGHMC's inverse masses.

Li, Chen, Carlson & Carin (2016), *Preconditioned stochastic gradient Langevin dynamics for deep
neural networks*. Each factory returns pure functions; what is learnt lives in the sampler's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ppl_bnn.inference.tree_math import Tree, times


class Preconditioner(NamedTuple):
    """A diagonal preconditioner.

    `init` makes its state from a position. `update` learns from a gradient; where the flag, a
    bool that may be traced, is false, G stays as it is. `scale` is G, in the shapes of the tree
    that it is given. `drift` is what SGLD multiplies by G: the gradient, or an average of it.
    """

    init: Callable[[Tree], Any]  # position -> state
    update: Callable[[Any, Tree, jax.Array | bool], Any]  # state, gradient, adapt -> state
    scale: Callable[[Any, Tree], Tree]  # state, any tree of the position's shapes -> G
    drift: Callable[[Any, Tree], Tree]  # state after the update, gradient -> drift


class RMSprop(NamedTuple):
    """State of `rmsprop`."""

    mean_square: Tree  # of the scaled gradients, shapes of the position


class Adam(NamedTuple):
    """State of `adam`; the weights, shape (), are 1 - decay ** updates."""

    mean: Tree  # of the gradients, shapes of the position
    mean_weight: jax.Array
    mean_square: Tree  # of the scaled gradients, shapes of the position
    mean_square_weight: jax.Array


def identity() -> Preconditioner:
    """No preconditioning: G = 1."""
    return Preconditioner(
        init=lambda position: (),
        update=lambda state, gradient, adapt: state,
        scale=lambda state, like: jax.tree.map(jnp.ones_like, like),
        drift=lambda state, gradient: gradient,
    )


def diagonal(scale: Mapping[str, Any]) -> Preconditioner:
    """A fixed G, for example posterior variances.

    Parameters
    ----------
    scale : dict of arrays
        Site to G of each element: positive, of a shape that broadcasts to the site's.

    Raises
    ------
    ValueError
        By `init`, if the sites or a shape are not the position's, or an entry is not positive.
    """

    def init(position: Tree) -> Tree:
        if set(scale) != set(position):
            raise ValueError(
                f"the diagonal preconditioner has the sites {sorted(scale)}; the position has "
                f"{sorted(position)}: give a scale for each of these."
            )
        return {name: fit(name, leaf) for name, leaf in position.items()}

    def fit(name: str, leaf: jax.Array) -> jax.Array:
        value = np.asarray(scale[name])
        if not np.all((value > 0) & np.isfinite(value)):
            raise ValueError(
                f"the diagonal preconditioner of {name!r} must be positive and finite."
            )
        try:
            return jnp.broadcast_to(jnp.asarray(value, leaf.dtype), leaf.shape)
        except ValueError:
            raise ValueError(
                f"the diagonal preconditioner of {name!r} has shape {value.shape}, which does not "
                f"broadcast to the site's shape {leaf.shape}."
            ) from None

    return Preconditioner(
        init=init,
        update=lambda state, gradient, adapt: state,
        scale=lambda state, like: state,
        drift=lambda state, gradient: gradient,
    )


def rmsprop(decay: float = 0.99, eps: float = 1e-5, gradient_scale: float = 1.0) -> Preconditioner:
    """G = 1 / (eps + sqrt(v)), v a running mean of squared gradients (Li et al. 2016).

    Parameters
    ----------
    decay : float
        v <- decay * v + (1 - decay) * (gradient_scale * gradient) ** 2, from v = 0 as in the
        paper: the first step moves every coordinate by about h / (sqrt(1 - decay) gradient_scale).
    eps : float
        In units of the scaled gradient. A G that was never updated is 1 / eps.
    gradient_scale : float
        Gradients come sum-scaled, of the whole data set's potential. The paper squares the mean
        over a batch: with N rows, ``gradient_scale=1 / N`` makes its `eps` and its step (twice
        ours) carry over. At 1 this is what Izmailov et al. (2021) do.

    Raises
    ------
    ValueError
        If `decay` is not in [0, 1), or `eps` or `gradient_scale` is not positive.
    """
    _check(decay=decay, eps=eps, gradient_scale=gradient_scale)

    def update(state: RMSprop, gradient: Tree, adapt: jax.Array | bool) -> RMSprop:
        return RMSprop(_average_square(state.mean_square, gradient, decay, gradient_scale, adapt))

    return Preconditioner(
        init=lambda position: RMSprop(jax.tree.map(jnp.zeros_like, position)),
        update=update,
        scale=lambda state, like: _inverse_root(state.mean_square, eps),
        drift=lambda state, gradient: gradient,
    )


def adam(
    mean_decay: float = 0.9,
    decay: float = 0.99,
    eps: float = 1e-5,
    gradient_scale: float = 1.0,
) -> Preconditioner:
    """RMSprop with averages corrected for their start at 0, and a drift along the mean gradient.

    A heuristic. The drift lags behind the position, so no step size is small enough to make the
    draws exact while `mean_decay` is of the order of the chain's autocorrelation; `sghmc` does
    with a momentum what this does without. Under `sghmc` itself only G is used. Without
    adaptation G stays, and the mean gradient goes on, being part of the dynamics.

    Parameters
    ----------
    mean_decay : float
        Of the running mean of gradients.
    decay, eps, gradient_scale : float
        As for `rmsprop`.

    Raises
    ------
    ValueError
        If a decay is not in [0, 1), or `eps` or `gradient_scale` is not positive.
    """
    _check(mean_decay=mean_decay, decay=decay, eps=eps, gradient_scale=gradient_scale)

    def init(position: Tree) -> Adam:
        zeros = jax.tree.map(jnp.zeros_like, position)
        weight = jnp.zeros((), jnp.result_type(float))
        return Adam(zeros, weight, zeros, weight)

    def update(state: Adam, gradient: Tree, adapt: jax.Array | bool) -> Adam:
        weight = decay * state.mean_square_weight + (1 - decay)
        return Adam(
            jax.tree.map(lambda m, g: mean_decay * m + (1 - mean_decay) * g, state.mean, gradient),
            mean_decay * state.mean_weight + (1 - mean_decay),
            _average_square(state.mean_square, gradient, decay, gradient_scale, adapt),
            jnp.where(adapt, weight, state.mean_square_weight),
        )

    def scale(state: Adam, like: Tree) -> Tree:
        weight = state.mean_square_weight
        inverse = 1 / jnp.where(weight > 0, weight, 1)
        return _inverse_root(jax.tree.map(lambda v: times(inverse, v), state.mean_square), eps)

    def drift(state: Adam, gradient: Tree) -> Tree:
        return jax.tree.map(lambda m: times(1 / state.mean_weight, m), state.mean)

    return Preconditioner(init, update, scale, drift)


def _average_square(
    old: Tree, gradient: Tree, decay: float, gradient_scale: float, adapt: jax.Array | bool
) -> Tree:
    def average(v, g):
        return jnp.where(adapt, decay * v + (1 - decay) * (gradient_scale * g) ** 2, v)

    return jax.tree.map(average, old, gradient)


def _inverse_root(mean_square: Tree, eps: float) -> Tree:
    def inverse(v):
        # the curvature correction differentiates this, and the root has no derivative at 0
        root = jnp.where(v > 0, jnp.sqrt(jnp.where(v > 0, v, 1)), 0)
        return 1 / (eps + root)

    return jax.tree.map(inverse, mean_square)


def _check(**options: float) -> None:
    for name, value in options.items():
        if name.endswith("decay"):
            if not 0 <= value < 1:
                raise ValueError(f"`{name}` must be in [0, 1), got {value}.")
        elif not (value > 0 and np.isfinite(value)):
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")
