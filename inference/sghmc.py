"""Stochastic gradient Hamiltonian Monte Carlo, the pure core: `init` and `step` on any gradient.

Underdamped Langevin dynamics with masses M = 1 / G, friction gamma and a noisy gradient g,

    dtheta = G r dt,    dr = -g dt - gamma r dt + sqrt(2 gamma T M) dW,

whose stationary momenta are N(0, T M). Chen, Fox & Guestrin (2014), *Stochastic gradient
Hamiltonian Monte Carlo*, eq. 13; Leimkuhler & Matthews (2013), *Rational construction of stochastic
numerical methods for molecular sampling*, for "baoab".

The time step is eps = sqrt(2 h), h being the `step_size`: where friction wipes out the momentum at
every step, "baoab" is SGLD with step h, but for noise that is averaged over two steps. In other
words: in Chen et al.'s eq. 15 (v = eps r) eta = 2 h and alpha = eps gamma, the momentum decay of
SGD being 1 - alpha; in Izmailov et al.'s (2021) momentum form the step is 2 h and beta =
1 - eps gamma, so that a beta that stays while h cycles is gamma = (1 - beta) / sqrt(2 h).

Gradient noise of variance V is added to r at each step, eps^2 V. To take it off the injected noise:

- "semi_implicit", r <- (1 - eps gamma) r - eps g + noise; theta <- theta + eps G r. Both noises
  enter at one place, so the injected variance is 2 eps gamma T M - eps^2 V, and the chain is
  exactly the one without gradient noise. (Chen et al.: 2 (C - B) eps, with B = eps V / 2.)
- "baoab", r <- r - eps g; theta <- theta + eps/2 G r; r <- c r + noise; theta <- theta + eps/2 G r,
  with c = exp(-eps gamma). Let n be a gradient's noise and z an injected one, and count how far
  each carries theta in all the steps to come, with momenta decaying by c a step: n by
  eps^2 G (1/2 + c/(1 - c)) = eps^2 G (1 + c) / (2 (1 - c)), and z by eps G / (1 - c). Their
  diffusions add up to that of variance T M (1 - c^2) for z alone if what is injected has variance
  T M (1 - c^2) - (eps (1 + c) / 2)^2 V. This is exact for slow directions; where the
  step is long for the curvature lambda, positions keep an error of order eps^4 lambda V.
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
INTEGRATORS = ("baoab", "semi_implicit")


class State(NamedTuple):
    """Where a chain is, how it moves, and what its masses have learnt."""

    position: Tree
    momentum: Tree  # shapes of the position
    preconditioner: Any  # of shapes like the position's, or empty


class Info(NamedTuple):
    """What was seen in one step; every field has shape ()."""

    potential: jax.Array  # where the step started, as the gradient function estimates it
    gradient_norm: jax.Array  # there
    virial: jax.Array  # position . gradient / d there; its mean is T for a density centred at 0
    kinetic_temperature: jax.Array  # mean of r^2 / M at the end of the step; its mean is T
    is_clipped: jax.Array  # whether the gradient's own noise was more than the step may inject


def init(
    rng_key: jax.Array,
    position: Tree,
    *,
    temperature: jax.Array | float = 1.0,
    preconditioner: Preconditioner = IDENTITY,
) -> State:
    """State at a position, with momenta from N(0, T M)."""
    zeros = jax.tree.map(jnp.zeros_like, position)
    state = State(position, zeros, preconditioner.init(position))
    return resample_momentum(rng_key, state, temperature=temperature, preconditioner=preconditioner)


def resample_momentum(
    rng_key: jax.Array,
    state: State,
    *,
    temperature: jax.Array | float = 1.0,
    preconditioner: Preconditioner = IDENTITY,
) -> State:
    """The same state, with fresh momenta from N(0, T M)."""
    scale = preconditioner.scale(state.preconditioner, state.position)
    root = jnp.sqrt(scalar(temperature))
    momentum = jax.tree.map(
        lambda z, g: times(root, z) / jnp.sqrt(g), normal_like(rng_key, state.position), scale
    )
    return state._replace(momentum=momentum)


def step(
    rng_key: jax.Array,
    state: State,
    gradient: Gradient,
    *,
    step_size: jax.Array | float,
    friction: jax.Array | float,
    temperature: jax.Array | float = 1.0,
    integrator: str = "baoab",
    preconditioner: Preconditioner = IDENTITY,
    adapt: jax.Array | bool = True,
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
        h; the time step is sqrt(2 h).
    friction : float
        gamma, per unit of time.
    temperature : float
        T; at 0 the step is one of gradient descent with momentum.
    integrator : "baoab" or "semi_implicit"
        With exact gradients of a Gaussian, "baoab" has exact positions at every step size and
        friction. "semi_implicit" has errors of order eps gamma, and asks for eps gamma < 2.
    preconditioner : Preconditioner
        The one that `init` was given; its G are the inverse masses.
    adapt : bool
        Whether the preconditioner learns from this step. Draws are exact only once it is frozen.
    noise_estimate : float or dict of arrays, optional
        Variance V of the gradient's noise, of each coordinate, to be taken off what is injected;
        that is nothing where it would be negative.
    noise : dict of arrays, optional
        Standard normals in the shapes of the position, in place of those that `rng_key` gives.

    Returns
    -------
    State, Info

    Raises
    ------
    ValueError
        If `integrator` is unknown.
    """
    if integrator not in INTEGRATORS:
        raise ValueError(f"`integrator` must be one of {INTEGRATORS}, got {integrator!r}.")
    temperature, gamma = scalar(temperature), scalar(friction)
    eps = jnp.sqrt(2 * scalar(step_size))
    potential, slope = gradient(state.position)
    learnt = preconditioner.update(state.preconditioner, slope, adapt)
    scale = preconditioner.scale(learnt, slope)
    if integrator == "baoab":
        decay = jnp.exp(-eps * gamma)
        strength = temperature * -jnp.expm1(-2 * eps * gamma)
        weight = (eps * (1 + decay) / 2) ** 2
    else:
        decay = 1 - eps * gamma
        strength = 2 * eps * gamma * temperature
        weight = eps**2
    thermal = jax.tree.map(lambda g: jnp.asarray(strength, g.dtype) / g, scale)
    variance, is_clipped = noise_variance(thermal, weight, noise_estimate)
    normals = normal_like(rng_key, state.position) if noise is None else noise
    kick = jax.tree.map(lambda v, z: jnp.sqrt(v) * z, variance, normals)

    def move(position: Tree, momentum: Tree, time: jax.Array) -> Tree:
        return {n: q + times(time, scale[n] * momentum[n]) for n, q in position.items()}

    position, momentum = state.position, state.momentum
    if integrator == "baoab":
        momentum = jax.tree.map(lambda r, g: r - times(eps, g), momentum, slope)
        position = move(position, momentum, eps / 2)
        momentum = jax.tree.map(lambda r, z: times(decay, r) + z, momentum, kick)
        position = move(position, momentum, eps / 2)
    else:
        momentum = jax.tree.map(
            lambda r, g, z: times(decay, r) - times(eps, g) + z, momentum, slope, kick
        )
        position = move(position, momentum, eps)

    weighted = jax.tree.map(jnp.multiply, scale, momentum)
    info = Info(
        potential=potential,
        gradient_norm=jnp.sqrt(dot(slope, slope)),
        virial=dot(state.position, slope) / num_elements(slope),
        kinetic_temperature=dot(momentum, weighted) / num_elements(slope),
        is_clipped=is_clipped,
    )
    return State(position, momentum, learnt), info
