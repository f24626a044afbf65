"""Replica-exchange SGLD, the pure core: `init` and `step` on any gradient.

SGLD at several temperatures, whose neighbours swap places. Deng, Feng, Gao, Liang & Lin (2020),
*Non-convex learning via replica exchange stochastic gradient MCMC*.

With exact potentials neighbours at T1 and T2 swap with probability min(1, exp(c D)),
c = 1/T1 - 1/T2 and D = U1 - U2. From an estimate of D with normal noise of variance 2 s^2 that
would be too often. The bias-corrected probability is

    a = min(1, exp(c (D - c s^2 / F))).

At F = 1 it is exact for known s^2: E a(D) / E a(-D) = exp(c D), detailed balance in expectation
(Ceperley & Dewing 1999, *The penalty method for random walks with uncertain energies*). F > 1
trades bias for more swaps. The variance is 2 s^2 where both potentials have independent noise of
variance s^2; where both come from the same batch, s^2 is half the variance of their difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.inference import sgld
from ppl_bnn.inference.tree_math import Tree, scalar

Gradient = Callable[[Tree], tuple[jax.Array, Tree]]  # position -> potential, its gradient
Potential = Callable[[Tree], jax.Array]  # position -> potential


class State(NamedTuple):
    """Where the replicas are."""

    position: Tree  # with a leading axis over the temperatures


class Info(NamedTuple):
    """What was seen in one step, by temperature, and between neighbours i and i + 1."""

    potential: jax.Array  # shape (temperatures,): of the replica that moved at this temperature
    gradient_norm: jax.Array  # shape (temperatures,)
    virial: jax.Array  # shape (temperatures,): position . gradient / d
    swap_probability: jax.Array  # shape (temperatures - 1,)
    is_attempted: jax.Array  # shape (temperatures - 1,)
    is_swapped: jax.Array  # shape (temperatures - 1,)
    difference_error: jax.Array  # shape (temperatures - 1,): of two estimates of U1 - U2, where
    # `potential` gave a second one; its variance is 4 s^2


def init(positions: Tree) -> State:
    """State of replicas, their positions stacked on a leading axis."""
    return State(positions)


def swap_probability(
    potential: jax.Array,
    temperatures: jax.Array,
    noise_variance: jax.Array | float = 0.0,
    correction: jax.Array | float = 1.0,
) -> jax.Array:
    """Probability that neighbours swap.

    Parameters
    ----------
    potential : jax.Array
        Shape (temperatures,). Estimates of U.
    temperatures : jax.Array
        Shape (temperatures,).
    noise_variance : float or jax.Array
        s^2, half the variance of the noise of U1 - U2; shape () or (temperatures - 1,).
    correction : float
        F, at least 1.

    Returns
    -------
    jax.Array
        Shape (temperatures - 1,).
    """
    c = 1 / temperatures[:-1] - 1 / temperatures[1:]
    difference = potential[:-1] - potential[1:]
    return jnp.exp(jnp.minimum(0, c * (difference - c * noise_variance / correction)))


def step(
    rng_key: jax.Array,
    state: State,
    gradient: Gradient,
    *,
    step_size: jax.Array | float,
    temperatures: jax.Array,
    noise_variance: jax.Array | float = 0.0,
    correction: jax.Array | float = 1.0,
    swap: jax.Array | bool = True,
    potential: Potential | None = None,
) -> tuple[State, Info]:
    """Swap, then move each replica at the temperature where it now is.

    Parameters
    ----------
    rng_key : jax.Array
        Random number generator key.
    state : State
        Where the replicas are.
    gradient : callable
        From one replica's position to estimates of the potential, summed over all the data, and of
        its gradient. Called once, vectorised over the replicas; they swap with their gradients.
    step_size : float or jax.Array
        h, shape () or (temperatures,).
    temperatures : jax.Array
        Shape (temperatures,). Of more than two, each step tries every second pair of neighbours,
        the even or the odd ones by the toss of a coin.
    noise_variance, correction
        s^2 and F of the swap's bias correction; see `swap_probability`.
    swap : bool
        Whether this step tries to swap.
    potential : callable, optional
        From one replica's position to an estimate of the potential with noise of its own, such as
        that of another batch. Otherwise swaps go by the gradient's estimate: free, but whether a
        replica swaps then tells of the noise in the gradient that it moves by.

    Returns
    -------
    State, Info

    Raises
    ------
    ValueError
        If there are fewer than two temperatures, or not as many as replicas.
    """
    key_parity, key_swap, key_move = jax.random.split(rng_key, 3)
    dtype = jnp.result_type(float)
    temperatures = jnp.asarray(temperatures, dtype)
    count = temperatures.size
    replicas = {leaf.shape[:1] for leaf in state.position.values()}
    if temperatures.ndim != 1 or count < 2 or replicas != {(count,)}:
        raise ValueError(
            f"`temperatures` has shape {temperatures.shape}; it must list at least two, one for "
            f"each replica, where the positions' leading axes are {sorted(replicas)}."
        )
    values, slopes = jax.vmap(gradient)(state.position)
    estimates = values if potential is None else jax.vmap(potential)(state.position)
    difference_error = jnp.diff(values - estimates).astype(dtype)

    probability = swap_probability(
        jnp.asarray(estimates, dtype), temperatures, scalar(noise_variance), scalar(correction)
    )
    lower = jnp.arange(count - 1)
    parity = jax.random.randint(key_parity, (), 0, min(count - 1, 2))
    is_attempted = (lower % 2 == parity) & jnp.asarray(swap)
    is_swapped = is_attempted & (jax.random.uniform(key_swap, (count - 1,), dtype) < probability)
    none = jnp.zeros((1,), jnp.int32)
    moves = is_swapped.astype(jnp.int32)
    order = jnp.arange(count) + jnp.concatenate([moves, none]) - jnp.concatenate([none, moves])
    position, values, slopes = jax.tree.map(
        lambda leaf: leaf[order], (state.position, values, slopes)
    )

    def move(key, position, value, slope, step_size, temperature):
        moved, info = sgld.step(
            key,
            sgld.init(position),
            lambda _: (value, slope),
            step_size=step_size,
            temperature=temperature,
        )
        return moved.position, info

    position, info = jax.vmap(move)(
        jax.random.split(key_move, count),
        position,
        values,
        slopes,
        jnp.broadcast_to(scalar(step_size), (count,)),
        temperatures,
    )
    return State(position), Info(
        potential=info.potential,
        gradient_norm=info.gradient_norm,
        virial=info.virial,
        swap_probability=probability,
        is_attempted=is_attempted,
        is_swapped=is_swapped,
        difference_error=difference_error,
    )
