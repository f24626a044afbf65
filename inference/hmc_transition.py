"""What NumPyro's `MCMC` carries for `ppl_bnn.HMC`, and one transition of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.inference import adaptation, hmc
from ppl_bnn.inference.chains import Chains, fit
from ppl_bnn.inference.hmc_settings import EARLY_SHARE, Settings, warn_collapse
from ppl_bnn.target import Target

PATIENCE = 10  # transitions in a row that may exceed the limit before the kernel gives up


class HMCState(NamedTuple):
    """State of one chain; with vectorised chains each field has a leading axis of chains."""

    i: jax.Array  # transitions made, shape ()
    z: dict[str, jax.Array]  # unconstrained position
    z_grad: dict[str, jax.Array]  # gradient of the log density
    terms: jax.Array  # partial sums of the log density, shape (terms,)
    potential_energy: jax.Array
    energy: jax.Array
    energy_error: jax.Array  # of the trajectory's end against its start
    trajectory_length: jax.Array  # before jitter
    step_size: jax.Array  # that the transition used
    num_steps: jax.Array  # leapfrog steps that the transition took
    accept_prob: jax.Array
    mean_accept_prob: jax.Array  # since the start of warm-up, or since its end
    is_accepted: jax.Array
    diverging: jax.Array
    metropolis: jax.Array  # whether the transition passed through a Metropolis test
    failed_at: jax.Array  # transition at which the kernel froze, -1 if it did not
    num_warmup: jax.Array
    adapt_state: adaptation.AdaptState
    data: jax.Array  # fingerprint of the data that `terms` and `z_grad` belong to
    rng_key: jax.Array


def first_state(
    chain: hmc.State,
    rng_key: jax.Array,
    *,
    num_warmup: int,
    trajectory_length: Any,
    adapt_state: adaptation.AdaptState,
    data: jax.Array,
) -> HMCState:
    """State of one chain, or of several, before the first transition."""
    number = partial(jnp.asarray, dtype=jnp.result_type(float))
    potential_energy = -jnp.sum(chain.terms, axis=-1)
    shared = {
        "i": jnp.int32(0),
        "trajectory_length": number(trajectory_length),
        "step_size": adapt_state.step_size,
        "num_steps": jnp.int32(0),
        "energy_error": number(0.0),
        "accept_prob": number(0.0),
        "mean_accept_prob": number(0.0),
        "is_accepted": jnp.asarray(True),
        "diverging": jnp.asarray(False),
        "metropolis": jnp.asarray(True),
        "failed_at": jnp.int32(-1),
        "num_warmup": jnp.int32(num_warmup),
        "adapt_state": adapt_state,
        "data": data,
    }
    return HMCState(
        z=chain.position,
        z_grad=chain.gradient,
        terms=chain.terms,
        potential_energy=potential_energy,
        energy=potential_energy,
        rng_key=rng_key,
        **jax.tree.map(lambda x: jnp.broadcast_to(x, potential_energy.shape + x.shape), shared),
    )


def refresh(
    state: HMCState, target: Target, arrays: Sequence[jax.Array], chains: Chains
) -> HMCState:
    """Recompute what a state holds of its data, if these are not the data of this run.

    Raises
    ------
    ValueError
        If the state comes from data of another size.
    """

    def recompute(state: HMCState) -> HMCState:
        log_density = target.log_density(arrays)
        fresh = chains.map(lambda z: hmc.init(z, log_density))(state.z)
        return state._replace(
            terms=fresh.terms,
            z_grad=fresh.gradient,
            potential_energy=-jnp.sum(fresh.terms, axis=-1),
            data=fit(target.fingerprint, state.data),
        )

    needed, got = jax.eval_shape(recompute, state).terms.shape, state.terms.shape
    if needed != got:
        raise ValueError(
            "the state (`post_warmup_state`?) was made on data of another size, or with another "
            f"`chunk_size`: its log density has {got[-1]} terms, here it has {needed[-1]}. Start a "
            "new `MCMC`, with `init_params=last_state.z` to begin where the old one ended."
        )
    stale = jnp.any(state.data != target.fingerprint)
    return jax.lax.cond(stale, recompute, lambda state: state, state)


def transition(
    state: HMCState, settings: Settings, target: Target, arrays: Sequence[jax.Array], chains: Chains
) -> HMCState:
    """One transition of every chain, unless the kernel is frozen."""

    def move(state: HMCState) -> HMCState:
        return _move(state, settings, target, arrays, chains)

    def stay(state: HMCState) -> HMCState:
        return state._replace(i=state.i + 1, num_steps=jnp.zeros_like(state.num_steps))

    was_frozen = chains.first(state.failed_at) >= 0
    new = jax.lax.cond(was_frozen, stay, move, state)
    failed_at, *record = chains.first((new.failed_at, new.step_size, new.mean_accept_prob))
    has_failed = failed_at >= 0  # said again at each later transition, thus also when resumed
    warn = partial(jax.debug.callback, partial(warn_collapse, limit=settings.limit))
    jax.lax.cond(has_failed, warn, lambda *_: None, has_failed, failed_at, *record)
    return new


def _move(
    state: HMCState, settings: Settings, target: Target, arrays: Sequence[jax.Array], chains: Chains
) -> HMCState:
    adapt_state, i, num_warmup, length = chains.first(
        (state.adapt_state, state.i, state.num_warmup, state.trajectory_length)
    )
    rng_key, key_step, key_jitter = chains.split(state.rng_key, 3)
    in_warmup = i < num_warmup
    step_size, num_steps, exceeds = settings.plan_trajectory(
        chains.first(key_jitter), adapt_state.step_size, length, i < EARLY_SHARE * num_warmup
    )
    metropolis = jnp.where(in_warmup, settings.metropolis_in_warmup, settings.metropolis)
    log_density = target.log_density(arrays)

    def step(key: jax.Array, chain: hmc.State) -> tuple[hmc.State, hmc.Info]:
        return hmc.step(
            key,
            chain,
            log_density,
            metric=adapt_state.inverse_mass_matrix,
            step_size=step_size,
            num_steps=num_steps,
            temperature=settings.temperature,
            metropolis=metropolis,
        )

    chain = hmc.State(state.z, state.terms, state.z_grad)
    chain, info = chains.map(step, (0, 0))(key_step, chain)

    def adapt(adapt_state: adaptation.AdaptState) -> adaptation.AdaptState:
        return adaptation.update(
            adapt_state,
            i=i,
            num_warmup=num_warmup,
            accept_prob=jnp.mean(info.accept_prob),
            positions=chains.stacked(chain.position),
            target_accept_prob=settings.target_accept_prob,
            adapt_step_size=settings.adapt_step_size,
        )

    adapt_state = jax.lax.cond(in_warmup, adapt, lambda same: same, adapt_state)
    num_exceeding = jnp.where(exceeds, adapt_state.num_exceeding + 1, 0)
    adapt_state = adapt_state._replace(num_exceeding=num_exceeding)
    has_failed = (num_exceeding >= PATIENCE) | (exceeds & ~in_warmup)
    count = jnp.where(in_warmup, i, i - num_warmup) + 1
    return state._replace(
        i=state.i + 1,
        z=chain.position,
        z_grad=chain.gradient,
        terms=chain.terms,
        potential_energy=-jnp.sum(chain.terms, axis=-1),
        energy=info.energy,
        energy_error=info.energy_error,
        trajectory_length=fit(settings.length(length, step_size), state.trajectory_length),
        step_size=fit(step_size, state.step_size),
        num_steps=fit(num_steps, state.num_steps),
        accept_prob=info.accept_prob,
        mean_accept_prob=state.mean_accept_prob
        + (info.accept_prob - state.mean_accept_prob) / count,
        is_accepted=info.is_accepted,
        diverging=info.is_divergent,
        metropolis=fit(metropolis, state.metropolis),
        failed_at=fit(jnp.where(has_failed, i, -1), state.failed_at),
        adapt_state=jax.tree.map(fit, adapt_state, state.adapt_state),
        rng_key=rng_key,
    )
