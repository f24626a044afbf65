"""Hamiltonian Monte Carlo, the pure core: `init` and `step` on any log density.

Neal (2011), *MCMC using Hamiltonian dynamics*, with two things that matter for neural networks:
the Metropolis test subtracts the log density term by term (Izmailov et al. 2021 difference prior,
likelihood and kinetic energy apart), and the temperature leaves the dynamics as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.inference.mass_matrix import (
    Metric,
    kinetic_difference,
    kinetic_energy,
    sample_momentum,
    velocity,
)

Tree = dict[str, jax.Array]
LogDensity = Callable[[Tree], jax.Array]  # position -> terms, shape (terms,), whose sum it is

DIVERGENCE = 1000.0  # energy error, in units of the temperature, as in Stan and NumPyro


class State(NamedTuple):
    """Where a chain is, and what was computed there."""

    position: Tree
    terms: jax.Array  # shape (terms,): partial sums of the log density
    gradient: Tree  # of the log density


class Info(NamedTuple):
    """What happened in one transition; every field has shape ()."""

    accept_prob: jax.Array
    is_accepted: jax.Array
    is_divergent: jax.Array
    energy: jax.Array  # potential + kinetic, at the state that was kept
    energy_error: jax.Array  # of the trajectory's end against its start
    num_steps: jax.Array


def evaluate(log_density: LogDensity, position: Tree) -> tuple[jax.Array, Tree]:
    """Terms of the log density, and its gradient."""

    def total(position):
        terms = jnp.atleast_1d(log_density(position))
        return jnp.sum(terms), terms

    gradient, terms = jax.grad(total, has_aux=True)(position)
    return terms, gradient


def init(position: Tree, log_density: LogDensity) -> State:
    """State at a position, at the cost of one gradient."""
    return State(position, *evaluate(log_density, position))


def leapfrog(
    log_density: LogDensity,
    metric: Metric,
    state: State,
    momentum: Tree,
    step_size: jax.Array | float,
    num_steps: jax.Array | int,
) -> tuple[State, Tree]:
    """Velocity Verlet for `num_steps` steps, one gradient a step.

    Reversible (negate the momentum and it runs back) and volume preserving. The terms of the log
    density are evaluated once, at the end: at every step they would cost a tenth of the time.
    """

    def total(position):
        return jnp.sum(log_density(position))

    def kick(momentum, gradient):
        return jax.tree.map(
            lambda p, g: p + (0.5 * step_size * g).astype(p.dtype), momentum, gradient
        )

    def body(_, carry):
        position, momentum, gradient = carry
        momentum = kick(momentum, gradient)
        position = jax.tree.map(
            lambda q, v: q + (step_size * v).astype(q.dtype), position, velocity(metric, momentum)
        )
        gradient = jax.grad(total)(position)
        return position, kick(momentum, gradient), gradient

    carry = (state.position, momentum, state.gradient)
    position, momentum, gradient = jax.lax.fori_loop(0, num_steps, body, carry)
    terms = jnp.atleast_1d(log_density(position))
    return State(position, terms, gradient), momentum


def step(
    rng_key: jax.Array,
    state: State,
    log_density: LogDensity,
    *,
    metric: Metric,
    step_size: jax.Array | float,
    num_steps: jax.Array | int,
    temperature: float = 1.0,
    metropolis: jax.Array | bool = True,
) -> tuple[State, Info]:
    """One transition.

    Parameters
    ----------
    rng_key : jax.Array
        Random number generator key.
    state : State
        Where the chain is.
    log_density : callable
        From a position to terms whose sum is the log density at temperature 1 of the dynamics,
        minus the potential energy.
    metric : Metric
        Inverse mass matrix.
    step_size, num_steps
        Of the leapfrog integrator. `num_steps` may be traced.
    temperature : float
        The chain samples exp(sum(terms) / temperature): momenta are drawn from N(0, T M), the
        energy error is divided by T.
    metropolis : bool
        Whether the end of the trajectory is tested; if not, it is kept unless it is not finite.

    Returns
    -------
    State, Info
        The state that is kept, which after a rejection is `state`, and the transition's record.
    """
    key_momentum, key_accept = jax.random.split(rng_key)
    momentum = sample_momentum(key_momentum, metric, state.position, temperature)
    end, end_momentum = leapfrog(log_density, metric, state, momentum, step_size, num_steps)

    difference = jnp.sum(end.terms - state.terms) - kinetic_difference(
        metric, end_momentum, momentum
    )
    log_ratio = difference / temperature
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    accept_prob = jnp.minimum(1.0, jnp.exp(log_ratio))
    passed = jax.random.uniform(key_accept, dtype=accept_prob.dtype) < accept_prob
    finite = jnp.isfinite(log_ratio)
    is_accepted = jnp.where(metropolis, passed, finite)
    kept = jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), end, state)
    start_energy = kinetic_energy(metric, momentum) - jnp.sum(state.terms)
    energy = start_energy - jnp.where(is_accepted, difference, 0.0)
    return kept, Info(
        accept_prob=accept_prob,
        is_accepted=is_accepted,
        is_divergent=log_ratio < -DIVERGENCE,
        energy=energy,
        energy_error=-difference,
        num_steps=jnp.asarray(num_steps),
    )
