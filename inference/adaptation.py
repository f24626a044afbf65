"""Adaptation during warm-up: the step size, and on request the masses.

Chains that run side by side share one step size and one mass matrix, learnt from all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.inference.mass_matrix import Metric, Tree

T0, KAPPA, GAMMA = 10.0, 0.75, 0.2
MASS_MATRIX_UPDATES = (0.15, 0.3, 0.55, 0.9)  # as shares of the warm-up


class DualAveraging(NamedTuple):
    """Dual averaging of log step sizes (Hoffman & Gelman 2014, section 3.2); shapes ().

    With a fixed trajectory length a step that is too small is dear, and one that is too large is
    cheap. So `GAMMA` is larger than the No-U-Turn sampler's 0.05: five rejections in a row divide
    the step by about 20, and not by 10^5.
    """

    log_step: jax.Array
    log_step_average: jax.Array
    error_average: jax.Array
    num_updates: jax.Array
    centre: jax.Array


class Welford(NamedTuple):
    """Running mean and sum of squared deviations of all chains' positions."""

    num_seen: jax.Array
    mean: Tree
    squares: Tree


class AdaptState(NamedTuple):
    """What is adapted, and what it is learnt from."""

    step_size: jax.Array  # shape ()
    inverse_mass_matrix: Metric
    dual_averaging: DualAveraging
    welford: Welford | None
    num_exceeding: jax.Array  # transitions in a row that needed more steps than allowed


def start_dual_averaging(step_size: jax.Array) -> DualAveraging:
    """Dual averaging centred at a step size."""
    log_step = jnp.log(jnp.asarray(step_size, jnp.result_type(float)))
    zero = jnp.zeros_like(log_step)
    return DualAveraging(log_step, log_step, zero, zero, log_step)


def update_dual_averaging(state: DualAveraging, error: jax.Array) -> DualAveraging:
    """One step, `error` being target minus realised acceptance probability."""
    count = state.num_updates + 1
    error_average = state.error_average + (error - state.error_average) / (count + T0)
    log_step = state.centre - jnp.sqrt(count) / GAMMA * error_average
    weight = count**-KAPPA
    log_step_average = weight * log_step + (1 - weight) * state.log_step_average
    return DualAveraging(log_step, log_step_average, error_average, count, state.centre)


def start_welford(position: Tree) -> Welford:
    """No positions seen yet; `position` is one chain's, for its shapes."""
    zeros = jax.tree.map(jnp.zeros_like, position)
    return Welford(jnp.zeros((), jnp.result_type(float)), zeros, zeros)


def update_welford(state: Welford, positions: Tree) -> Welford:
    """Add the positions of several chains, stacked on a leading axis."""
    added = jax.tree.leaves(positions)[0].shape[0]
    count = state.num_seen + added

    def merge(mean, squares, new):
        centre = jnp.mean(new, axis=0)
        shift = centre - mean
        inner = jnp.sum((new - centre) ** 2, axis=0)
        return (
            (mean + shift * (added / count)).astype(mean.dtype),
            (squares + inner + shift**2 * (state.num_seen * added / count)).astype(mean.dtype),
        )

    merged = {n: merge(state.mean[n], state.squares[n], positions[n]) for n in positions}
    mean, squares = ({n: pair[i] for n, pair in merged.items()} for i in (0, 1))
    return Welford(count, mean, squares)


def start(step_size: jax.Array, metric: Metric, position: Tree, adapt_mass: bool) -> AdaptState:
    """Adaptation before the first transition; `position` is one chain's."""
    step_size = jnp.asarray(step_size, jnp.result_type(float))
    return AdaptState(
        step_size,
        metric,
        start_dual_averaging(step_size),
        start_welford(position) if adapt_mass else None,
        jnp.zeros((), jnp.int32),
    )


def update(
    state: AdaptState,
    *,
    i: jax.Array,
    num_warmup: jax.Array,
    accept_prob: jax.Array,
    positions: Tree,
    target_accept_prob: float,
    adapt_step_size: bool,
) -> AdaptState:
    """Learn from transition `i` (counted from 0) of the warm-up.

    `accept_prob` is the mean over chains, `positions` are all chains' on a leading axis. Masses
    are set to the inverse posterior variances, shrunk a little towards 1e-3 as in Stan, at fixed
    shares of the warm-up, from the positions since the last time; the step size then starts anew.
    """
    if state.welford is not None:
        welford = update_welford(state.welford, positions)
        state = state._replace(welford=welford)
        ends = jnp.stack([jnp.floor(share * num_warmup) for share in MASS_MATRIX_UPDATES])
        due = jnp.any(i + 1 == ends) & (welford.num_seen >= 10)
        state = jax.lax.cond(due, _new_masses, lambda s, _: s, state, welford)
    if adapt_step_size:
        dual = update_dual_averaging(state.dual_averaging, target_accept_prob - accept_prob)
        last = i + 1 >= num_warmup
        log_step = jnp.where(last, dual.log_step_average, dual.log_step)
        state = state._replace(dual_averaging=dual, step_size=jnp.exp(log_step))
    return state


def _new_masses(state: AdaptState, welford: Welford) -> AdaptState:
    count, _, squares = welford
    metric = state.inverse_mass_matrix
    shrink = count / (count + 5)
    diagonal = {
        name: (shrink * squares[name] / (count - 1) + (1 - shrink) * 1e-3).astype(old.dtype)
        for name, old in metric.diagonal.items()
    }
    return state._replace(
        inverse_mass_matrix=metric._replace(diagonal=diagonal),
        welford=jax.tree.map(jnp.zeros_like, welford),
        dual_averaging=start_dual_averaging(state.step_size),
    )
