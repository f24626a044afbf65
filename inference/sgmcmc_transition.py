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
    draw = partial(
        batches.draw,
        num_rows=target.rows.num_rows,
        batch_size=settings.batch_size,
        batching=settings.batching,
    )
    i, num_warmup = chains.first((state.i, state.num_warmup))
    in_warmup = i < num_warmup

    def move(rng_key, z, core, place, failed, anchor, step):
        key_batch, key_step, key_other = jax.random.split(rng_key, 3)
        temperature = settings.temperature_at(step)

        def estimate(batch: Batch):
            if anchor is None:
                return plain(density.log_density, batch, temperature)
            return against_anchor(density.log_density, batch, temperature, anchor)

        def other_batch() -> Batch:  # takes nothing out of the epoch
            return density.take(draw(key_other, place, batching="iid")[0])

        index, next_place = draw(key_batch, place)
        new, info = core_step(
            core._replace(position=z),
            Step(
                number=step,
                rng_key=key_step,
                gradient=estimate(density.take(index)),
                potential=lambda position: estimate(other_batch())(position)[0],
                step_size=settings.step_size_at(step),
                temperature=settings.noise_temperature_at(step),
                in_warmup=in_warmup,
            ),
        )
        failed_at, failed_site = failed
        is_bad = ~(jnp.isfinite(info.potential) & jnp.isfinite(info.gradient_norm))
        first_bad = is_bad & (failed_at < 0)
        failed_at = jnp.where(first_bad, step, failed_at)
        keep = failed_at < 0
        failed_site = jnp.where(first_bad, _first_not_finite(new.position), failed_site)
        z = jax.tree.map(lambda a, b: jnp.where(keep, a, b), new.position, z)
        rest = jax.tree.map(
            lambda a, b: jnp.where(keep, a, b),
            new._replace(position=None),
            core._replace(position=None),
        )
        return z, rest, next_place, (failed_at, failed_site), info

    def refresh(z, anchor, step):
        if settings.refresh_interval is None:
            return anchor
        renew = chains.map(lambda z, _: at_anchor(z, density.all_rows))
        return jax.lax.cond(
            step % settings.refresh_interval == 0, renew, lambda _, anchor: anchor, z, anchor
        )

    def body(k, carry):
        rng_key, z, core, place, failed, anchor, total = carry
        step = i * settings.steps_per_draw + k
        anchor = refresh(z, anchor, step)
        rng_key, key_step = chains.split(rng_key, 2)
        axes = (0, 0, 0, 0, 0, None if anchor is None else 0, None)
        z, core, place, failed, info = chains.map(move, axes)(
            key_step, z, core, place, failed, anchor, step
        )
        total = jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, info)
        return rng_key, z, core, place, failed, anchor, total

    carry = (
        state.rng_key,
        state.z,
        state.core,
        state.place,
        (state.failed_at, state.failed_site),
        state.anchor,
        jax.tree.map(jnp.zeros_like, state.info),
    )
    rng_key, z, core, place, failed, anchor, total = jax.lax.fori_loop(
        0, settings.steps_per_draw, body, carry
    )
    _warn_frozen(sorted(target.names), *failed)
    info = jax.tree.map(lambda x: x / settings.steps_per_draw, total)
    last = (i + 1) * settings.steps_per_draw - 1
    return state._replace(
        i=state.i + 1,
        z=z,
        core=core,
        anchor=anchor,
        place=place,
        info=info,
        potential_energy=info.potential,
        step_size=fit(settings.step_size_at(last), state.step_size),
        temperature=fit(settings.noise_temperature_at(last), state.temperature),
        is_kept=fit(settings.is_kept_at(last), state.is_kept),
        failed_at=failed[0],
        failed_site=failed[1],
        rng_key=rng_key,
    )


def _first_not_finite(position: dict[str, jax.Array]) -> jax.Array:
    """Number of the first site, by name, whose value is not finite; -1 if all are."""
    bad = jnp.stack([~jnp.all(jnp.isfinite(position[name])) for name in sorted(position)])
    return jnp.where(jnp.any(bad), jnp.argmax(bad), -1)


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
