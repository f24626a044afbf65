"""Stochastic gradient Langevin dynamics, the pure core: `init` and `step` on any gradient.

    theta <- theta - h G g + h T Gamma + sqrt(2 h T G) z

with g an estimate of the gradient of U = -log density, and z standard normal. Welling & Teh (2011),
*Bayesian learning via stochastic gradient Langevin dynamics*, eq. 4, with G = 1, no Gamma, and
their step eps_t = 2 h; Li et al. (2016), *Preconditioned stochastic gradient Langevin dynamics*,
algorithm 1, with their step 2 h, where G is adapted and Gamma_i = dG_i / dtheta_i.

The temperature T stands at the injected noise (and at Gamma, which belongs to that noise), so that
the chain samples exp(-U / T) for small h. For a Gaussian with precision lambda, G = 1 and a
gradient whose noise has variance V, its variance is (2 T + h V) / (lambda (2 - h lambda)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.inference.preconditioner import Preconditioner, identity
from ppl_bnn.inference.tree_math import (
    Tree,
    dot,
    noise_variance,
    normal_like,
    num_elements,
    scalar,
    times,
)

Gradient = Callable[[Tree], tuple[jax.Array, Tree]]  # position -> potential, its gradient

IDENTITY = identity()


class State(NamedTuple):
    """Where a chain is, and what its preconditioner has learnt."""

    position: Tree
    preconditioner: Any  # of shapes like the position's, or empty


class Info(NamedTuple):
    """What was seen at the position where a step started; every field has shape ()."""

    potential: jax.Array  # as the gradient function estimates it
    gradient_norm: jax.Array
    virial: jax.Array  # position . gradient / d; its mean is T where the density is centred at 0
    is_clipped: jax.Array  # whether the gradient's own noise was more than the step may inject


def init(position: Tree, preconditioner: Preconditioner = IDENTITY) -> State:
    """State at a position."""
    return State(position, preconditioner.init(position))


def step(
    rng_key: jax.Array,
    state: State,
    gradient: Gradient,
    *,
    step_size: jax.Array | float,
    temperature: jax.Array | float = 1.0,
    preconditioner: Preconditioner = IDENTITY,
    adapt: jax.Array | bool = True,
    curvature_correction: bool = False,
    noise_estimate: Any | None = None,
    noise: Tree | None = None,
) -> tuple[State, Info]:
    """One step.

    Parameters
    ----------
    rng_key : jax.Array
        Random number generator key.
    state : State
        Where the chain is.
    gradient : callable
        From a position to estimates of the potential, summed over all the data, and of its
        gradient. Called once.
    step_size : float
        h.
    temperature : float
        T; at 0 the step is one of gradient descent.
    preconditioner : Preconditioner
        The one that `init` was given.
    adapt : bool
        Whether the preconditioner learns from this step. G then depends on the past, and draws
        are exact only once it is frozen.
    curvature_correction : bool
        Add h T Gamma, with Gamma the derivative of G through this step's gradient, estimated with
        one product of the Hessian and a vector of random signs. `gradient` must then allow
        forward differentiation. What G remembers of earlier steps counts as constant.
    noise_estimate : float or dict of arrays, optional
        Variance V of the gradient's noise, of each coordinate. The step then injects variance
        2 h T G - h^2 G^2 V, or nothing where that is negative.
    noise : dict of arrays, optional
        Standard normals in the shapes of the position, in place of those that `rng_key` gives.

    Returns
    -------
    State, Info
    """
    h, temperature = scalar(step_size), scalar(temperature)
    key_noise = rng_key
    old = state.preconditioner

    def learn(gradient: Tree) -> tuple[Tree, Any]:
        new = preconditioner.update(old, gradient, adapt)
        return preconditioner.scale(new, gradient), new

    if curvature_correction:
        key_noise, key_signs = jax.random.split(rng_key)
        potential, slope, hessian_diagonal = _with_curvature(key_signs, gradient, state.position)
        scale, gamma, new = jax.jvp(learn, (slope,), (hessian_diagonal,), has_aux=True)
    else:
        potential, slope = gradient(state.position)
        scale, new = learn(slope)
        gamma = None

    thermal = jax.tree.map(lambda g: times(2 * h * temperature, g), scale)
    weight = jax.tree.map(lambda g: times(h, g) ** 2, scale)
    variance, is_clipped = noise_variance(thermal, weight, noise_estimate)
    drift = preconditioner.drift(new, slope)
    noise = normal_like(key_noise, state.position) if noise is None else noise
    position = {
        name: leaf - times(h, scale[name] * drift[name]) + jnp.sqrt(variance[name]) * noise[name]
        for name, leaf in state.position.items()
    }
    if gamma is not None:
        position = jax.tree.map(lambda q, c: q + times(h * temperature, c), position, gamma)
    info = Info(
        potential=potential,
        gradient_norm=jnp.sqrt(dot(slope, slope)),
        virial=dot(state.position, slope) / num_elements(slope),
        is_clipped=is_clipped,
    )
    return State(position, new), info


def _with_curvature(
    rng_key: jax.Array, gradient: Gradient, position: Tree
) -> tuple[jax.Array, Tree, Tree]:
    """Potential, gradient, and an unbiased estimate of the Hessian's diagonal (Hutchinson)."""
    keys = jax.random.split(rng_key, len(position))
    signs = {
        name: jax.random.rademacher(key, leaf.shape, leaf.dtype)
        for key, (name, leaf) in zip(keys, position.items(), strict=True)
    }

    def slope_first(position):
        potential, slope = gradient(position)
        return slope, potential

    slope, product, potential = jax.jvp(slope_first, (position,), (signs,), has_aux=True)
    return potential, slope, jax.tree.map(jnp.multiply, signs, product)
