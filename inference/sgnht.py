"""Stochastic gradient Nosé-Hoover thermostats, the pure core: `init` and `step` on any gradient.

Langevin dynamics whose friction xi is a variable that finds the value at which momenta have
temperature T, whatever the (constant, isotropic) noise of the gradient g:

    dtheta = r dt,    dr = -g dt - xi r dt + sqrt(2 A) dW,    dxi = (r . r - d T) / mu dt.

Ding, Fang, Babbush, Chen, Skeel & Neven (2014), *Bayesian sampling using stochastic gradient
thermostats* ("euler"); Leimkuhler & Shang (2016), *Adaptive thermostats for noisy gradient systems*
("badodab"). The time step is eps = sqrt(2 h), h being the `step_size`; Ding et al.'s h is our eps.

Gradient noise of variance V is that of a diffusion A' = eps V / 2, so for small steps
E xi = (A + eps V / 2) / T, with an error of order eps ("euler") or eps^2 ("badodab"). One global xi
absorbs only noise that is the same in all directions. One for each parameter (d = 1 each) absorbs
any diagonal V.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.inference.tree_math import (
    Tree,
    by_site,
    dot,
    normal_like,
    num_elements,
    scalar,
    times,
)

Gradient = Callable[[Tree], tuple[jax.Array, Tree]]  # position -> potential, its gradient

INTEGRATORS = ("badodab", "euler")
THERMOSTATS = ("global", "per_parameter")


class State(NamedTuple):
    """Where a chain is, how it moves, and its thermostat."""

    position: Tree
    momentum: Tree  # shapes of the position
    xi: jax.Array | Tree  # shape () for a global thermostat, else shapes of the position


class Info(NamedTuple):
    """What was seen in one step; every field has shape ()."""

    potential: jax.Array  # where the step started, as the gradient function estimates it
    gradient_norm: jax.Array  # there
    virial: jax.Array  # position . gradient / d there; its mean is T for a density centred at 0
    kinetic_temperature: jax.Array  # mean of r^2 at the end of the step; its mean is T
    friction: jax.Array  # mean of xi at the end of the step


def init(
    rng_key: jax.Array,
    position: Tree,
    *,
    temperature: jax.Array | float = 1.0,
    diffusion: jax.Array | float = 1.0,
    thermostat: str = "global",
) -> State:
    """State at a position, with momenta from N(0, T) and xi = A / T, right for exact gradients.

    At T = 1 that is where Ding et al. begin. From elsewhere a chain at low T would be too hot for
    the time that xi, moving by about T per unit of time, takes to rise.

    Raises
    ------
    ValueError
        If `thermostat` is unknown.
    """
    if thermostat not in THERMOSTATS:
        raise ValueError(f"`thermostat` must be one of {THERMOSTATS}, got {thermostat!r}.")
    temperature = scalar(temperature)
    root = jnp.sqrt(temperature)
    momentum = jax.tree.map(lambda z: times(root, z), normal_like(rng_key, position))
    xi = scalar(diffusion) / jnp.where(temperature > 0, temperature, 1)
    if thermostat == "global":
        return State(position, momentum, xi)
    return State(
        position,
        momentum,
        jax.tree.map(lambda q: jnp.full(q.shape, xi.astype(q.dtype), q.dtype), position),
    )


def step(
    rng_key: jax.Array,
    state: State,
    gradient: Gradient,
    *,
    step_size: jax.Array | float,
    temperature: jax.Array | float = 1.0,
    diffusion: jax.Array | float = 1.0,
    thermal_mass: jax.Array | float = 1.0,
    integrator: str = "badodab",
    noise: Tree | None = None,
) -> tuple[State, Info]:
    """One step; the thermostat is the one that `init` was given.

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
    temperature : float
        T. At 0 nothing is injected and xi rests: gradient descent with friction xi.
    diffusion : float
        A; the injected noise has variance 2 A per unit of time, whatever T.
    thermal_mass : float
        mu in units of the number of degrees of freedom that a thermostat sees: at 1, as in Ding et
        al., mu = d for the global one and 1 for one per parameter. Larger is slower and steadier;
        xi has stationary variance T / mu.
    integrator : "badodab" or "euler"
        Both take one gradient a step. The half kicks at the end of a "badodab" step and at the
        beginning of the next have the same gradient, and are one kick here, at the beginning.
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
    temperature, mass = scalar(temperature), scalar(thermal_mass)
    eps = jnp.sqrt(2 * scalar(step_size))
    is_hot = temperature > 0
    diffusion = jnp.where(is_hot, scalar(diffusion), 0)
    potential, slope = gradient(state.position)
    noise = normal_like(rng_key, state.position) if noise is None else noise

    def heat(xi: jax.Array | Tree, momentum: Tree, time: jax.Array) -> jax.Array | Tree:
        rate = jnp.where(is_hot, time / mass, 0)
        if isinstance(xi, dict):
            return {
                n: x + times(rate, momentum[n] ** 2 - temperature.astype(x.dtype))
                for n, x in xi.items()
            }
        return xi + rate * (dot(momentum, momentum) / num_elements(momentum) - temperature)

    def move(position: Tree, momentum: Tree, time: jax.Array) -> Tree:
        return jax.tree.map(lambda q, r: q + times(time, r), position, momentum)

    position, momentum, xi = state
    if integrator == "badodab":
        momentum = jax.tree.map(lambda r, g: r - times(eps, g), momentum, slope)
        position = move(position, momentum, eps / 2)
        xi = heat(xi, momentum, eps / 2)
        momentum = _ornstein_uhlenbeck(momentum, noise, by_site(xi, slope), eps, diffusion)
        xi = heat(xi, momentum, eps / 2)
        position = move(position, momentum, eps / 2)
    else:
        rates = by_site(xi, slope)
        spread = jnp.sqrt(2 * diffusion * eps)
        momentum = {
            n: r - times(eps, slope[n]) - times(eps, times(rates[n], r)) + times(spread, noise[n])
            for n, r in momentum.items()
        }
        position = move(position, momentum, eps)
        xi = heat(xi, momentum, eps)

    info = Info(
        potential=potential,
        gradient_norm=jnp.sqrt(dot(slope, slope)),
        virial=dot(state.position, slope) / num_elements(slope),
        kinetic_temperature=dot(momentum, momentum) / num_elements(slope),
        friction=_mean(xi),
    )
    return State(position, momentum, xi), info


def _ornstein_uhlenbeck(
    momentum: Tree, noise: Tree, xi: Tree, time: jax.Array, diffusion: jax.Array
) -> Tree:
    """Exact solution of dr = -xi r dt + sqrt(2 A) dW, for xi of any sign."""

    def solve(r: jax.Array, z: jax.Array, xi: jax.Array) -> jax.Array:
        double = times(2 * time, jnp.asarray(xi, r.dtype))
        is_tiny = jnp.abs(double) < jnp.finfo(r.dtype).eps
        safe = jnp.where(is_tiny, 1, double)
        ratio = jnp.where(is_tiny, 1, -jnp.expm1(-safe) / safe)
        variance = times(2 * diffusion * time, ratio)
        return jnp.exp(-double / 2) * r + jnp.sqrt(variance) * z

    return {name: solve(r, noise[name], xi[name]) for name, r in momentum.items()}


def _mean(xi: jax.Array | Tree) -> jax.Array:
    if isinstance(xi, dict):
        return dot(xi, jax.tree.map(jnp.ones_like, xi)) / num_elements(xi)
    return xi
