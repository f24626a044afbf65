"""The state of a stochastic-gradient kernel in NumPyro's `MCMC`, and a transition of many steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.batch_density import Batch, BatchDensity
from ppl_bnn.inference import batches
from ppl_bnn.inference.chains import Chains, fit
from ppl_bnn.inference.estimators import Anchor, against_anchor, at_anchor, plain
from ppl_bnn.inference.packing import Packing
from ppl_bnn.inference.sgmcmc_settings import Settings
from ppl_bnn.target import Target


class Step(NamedTuple):
    """What one step of a chain is given."""

    number: jax.Array  # of the step, from 0 and through warm-up
    rng_key: jax.Array
    gradient: Callable  # position -> estimate of the potential, and its gradient
    potential: Callable  # position -> another estimate, from a batch of its own; free if not called
    step_size: jax.Array
    temperature: jax.Array  # of the injected noise
    in_warmup: jax.Array
    noise: dict[str, jax.Array] | None  # standard normals, where they were drawn beforehand
    by_site: Callable  # what a user gave for each site -> in the form of the position


MOST_NUMBERS = 2**18  # of a kind, drawn ahead for a chain

CoreStep = Callable[[Any, Step], tuple[Any, Any]]  # core state -> core state, info


class SGMCMCState(NamedTuple):
    """State of one chain; with vectorised chains each field has a leading axis of chains."""

    i: jax.Array  # transitions made, shape ()
    z: dict[str, jax.Array]  # unconstrained position
    core: Any  # of the algorithm, but for its position
    anchor: Anchor | None
    place: batches.Place
    info: Any  # of the algorithm, averaged over the steps of the transition
    potential_energy: jax.Array  # estimated from the batches, averaged likewise
    step_size: jax.Array  # of the last step
    temperature: jax.Array  # of that step's noise
    is_kept: jax.Array  # whether the schedule lets the position count as a draw
    failed_at: jax.Array  # step at which the chain froze, -1 if it did not
    failed_site: jax.Array  # number of the site that was not finite, -1 if none is to blame
    num_warmup: jax.Array
    data: jax.Array  # fingerprint of the data that the anchor belongs to
    rng_key: jax.Array


class Drawn(NamedTuple):
    """What is random in some steps of a chain, drawn at once: a call costs more than its numbers.

    On a CPU every call of JAX's generator is a loop of its own, dearer than a small gradient.
    """

    key_step: jax.Array  # shape (steps,)
    key_other: jax.Array  # for batches besides those that steps move by, shape (steps,)
    rows: jax.Array  # their numbers, shape (steps, batch)
    noise: dict[str, jax.Array]  # for the steps' own noise, in the form of `Packing`


def transition(
    state: SGMCMCState,
    settings: Settings,
    core_step: CoreStep,
    target: Target,
    density: BatchDensity,
    chains: Chains,
) -> SGMCMCState:
    """`steps_per_draw` steps of every chain that is not frozen."""
    assert target.rows is not None
    packing = Packing(jax.eval_shape(chains.first, state.z))
    log_density, all_rows = _packed(density, packing)
    draw = partial(batches.draw, num_rows=target.rows.num_rows, batch_size=settings.batch_size)
    # as noisy as the batches of the steps
    alone = "iid" if settings.batching == "iid" else "without_replacement"
    i, num_warmup = chains.first((state.i, state.num_warmup))

    def draw_steps(length, rng_key, place):
        rng_key, key_batches, key_steps, key_other, key_noise = jax.random.split(rng_key, 5)
        index, place = draw(key_batches, place, batching=settings.batching, num_batches=length)
        key_steps, key_other = (jax.random.split(key, length) for key in (key_steps, key_other))
        return (
            rng_key,
            place,
            Drawn(key_steps, key_other, index, packing.normals(key_noise, length)),
        )

    def move(number, drawn, z, core, anchor):
        temperature = settings.temperature_at(number)

        def estimate(batch: Batch):
            if anchor is None:
                return plain(log_density, batch, temperature)
            return against_anchor(log_density, batch, temperature, anchor)

        def other_batch() -> Batch:  # takes nothing out of the epoch
            return density.take(draw(drawn.key_other, None, batching=alone)[0][0])

        new, info = core_step(
            core._replace(position=z),
            Step(
                number=number,
                rng_key=drawn.key_step,
                gradient=estimate(density.take(drawn.rows)),
                potential=lambda position: estimate(other_batch())(position)[0],
                step_size=settings.step_size_at(number),
                temperature=settings.noise_temperature_at(number),
                in_warmup=i < num_warmup,
                noise=drawn.noise,
                by_site=packing.values,
            ),
        )
        # a NaN in a step size or temperature shows in the position alone
        is_well = jnp.isfinite(info.potential) & jnp.isfinite(info.gradient_norm)
        is_well &= packing.is_finite(new.position)
        return new.position, new._replace(position=None), is_well, info

    def settle(number, is_well, new, old, failed):
        """What a chain has after a step: what was new, or the old if this or an earlier failed."""
        failed_at, failed_site = failed
        first_bad = ~is_well & (failed_at < 0)
        failed_at = jnp.where(first_bad, number, failed_at).astype(failed_at.dtype)
        failed_site = jnp.where(first_bad, packing.first_not_finite(new[0]), failed_site)
        kept = jax.tree.map(lambda a, b: jnp.where(failed_at < 0, a, b), new, old)
        return *kept, (failed_at, failed_site)

    def settle_all(number, is_well, new, old, failed):
        changed = chains.map(partial(settle, number))
        if chains.is_spread:  # no device waits for another to say how it fares
            return changed(is_well, new, old, failed)
        return jax.lax.cond(
            jnp.all(is_well & (failed[0] < 0)),
            lambda _, new, __, failed: (*new, failed),
            changed,
            is_well,
            new,
            old,
            failed,
        )

    def refresh(z, anchor, number):
        if settings.refresh_interval is None:
            return anchor
        renew = chains.map(lambda z, _: at_anchor(z, all_rows))
        return jax.lax.cond(
            number % settings.refresh_interval == 0, renew, lambda _, anchor: anchor, z, anchor
        )

    def block(length, _, carry):
        first, rng_key, place, *moving = carry
        rng_key, place, drawn = chains.map(partial(draw_steps, length))(rng_key, place)

        def body(carry, at_step):
            number, drawn = at_step
            z, core, failed, anchor, total = carry
            anchor = refresh(z, anchor, number)
            axes = (0, 0, 0, None if anchor is None else 0)
            *new, is_well, info = chains.map(partial(move, number), axes)(drawn, z, core, anchor)
            z, core, failed = settle_all(number, is_well, tuple(new), (z, core), failed)
            total = jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, info)
            return (z, core, failed, anchor, total), None

        if chains.batched:
            drawn = jax.tree.map(lambda values: jnp.swapaxes(values, 0, 1), drawn)
        steps = first + jnp.arange(length), drawn
        moving, _ = jax.lax.scan(body, tuple(moving), steps)
        return first + length, rng_key, place, *moving

    carry = (
        i * settings.steps_per_draw,
        state.rng_key,
        state.place,
        *packing.pack((state.z, state.core)),
        (state.failed_at, state.failed_site),
        packing.pack(state.anchor),
        jax.tree.map(jnp.zeros_like, state.info),
    )
    length = _block_length(settings, packing)
    num_blocks = settings.steps_per_draw // length
    carry = jax.lax.fori_loop(0, num_blocks, partial(block, length), carry)
    number, rng_key, place, z, core, failed, anchor, total = carry
    z, core, anchor = packing.unpack((z, core, anchor))
    _warn_frozen(sorted(target.names), *failed)
    info = jax.tree.map(lambda x: x / settings.steps_per_draw, total)
    return state._replace(
        i=state.i + 1,
        z=z,
        core=core,
        anchor=anchor,
        place=place,
        info=info,
        potential_energy=info.potential,
        step_size=fit(settings.step_size_at(number - 1), state.step_size),
        temperature=fit(settings.noise_temperature_at(number - 1), state.temperature),
        is_kept=fit(settings.is_kept_at(number - 1), state.is_kept),
        failed_at=failed[0],
        failed_site=failed[1],
        rng_key=rng_key,
    )


def check_continued(state: SGMCMCState, settings: Settings) -> None:
    """Refuse a state that these settings cannot go on from.

    Raises
    ------
    ValueError
        If it has an anchor and `gradient` needs none, or none where one is needed, or is of
        another number of chains than there are keys.
    """
    had, needs = state.anchor is not None, settings.gradient != "plain"
    if had != needs:
        raise ValueError(
            f"`gradient` is {settings.gradient!r}, but the state comes from a run "
            f"{'with' if had else 'without'} an anchor for control variates: continue with the "
            "`gradient` that it began with."
        )
    if jnp.shape(state.i) != state.rng_key.shape[: jnp.ndim(state.i)]:
        raise ValueError(
            f"the state has {len(state.i)} chains and there are {len(state.rng_key)} keys: "
            "continue with as many chains."
        )


def _block_length(settings: Settings, packing: Packing) -> int:
    """Steps of which to draw the random numbers at once: a divisor of all, for one loop."""
    most = max(1, MOST_NUMBERS // max(settings.batch_size, packing.size))
    num_steps = settings.steps_per_draw
    return next(k for k in range(min(num_steps, most), 0, -1) if num_steps % k == 0)


def _packed(density: BatchDensity, packing: Packing) -> tuple[Callable, Callable]:
    """Log density of a batch, and potential and gradient over all rows, of packed positions."""

    def log_density(position, batch, temperature):
        return density.log_density(packing.unpack(position), batch, temperature)

    def all_rows(position):
        return packing.pack(density.all_rows(packing.unpack(position)))

    return log_density, all_rows


def _warn_frozen(names: Sequence[str], failed_at: jax.Array, failed_site: jax.Array) -> None:
    """Say that, when and where chains froze, if any did."""

    def warn(failed_at, failed_site):
        steps, sites = jnp.atleast_1d(failed_at).tolist(), jnp.atleast_1d(failed_site).tolist()
        if max(steps) < 0:  # under `vmap` both branches of the caller's condition run
            return
        frozen = "; ".join(
            f"chain {chain} at step {step}, "
            + (f"site {names[site]!r}" if site >= 0 else "the log likelihood")
            for chain, (step, site) in enumerate(zip(steps, sites, strict=True))
            if step >= 0
        )
        warnings.warn(
            f"the potential energy or its gradient was no longer finite: {frozen}. From there on "
            "the chain repeats its last position; what was drawn before is kept. The usual cause "
            "is a step size beyond the limit of stability: reduce `step_size`, begin with a "
            "`warm_start`, and check that inputs and targets are standardised.",
            RuntimeWarning,
            stacklevel=2,
        )

    jax.lax.cond(
        jnp.any(failed_at >= 0),
        partial(jax.debug.callback, warn),
        lambda *_: None,
        failed_at,
        failed_site,
    )
