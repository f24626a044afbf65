"""Where chains of stochastic-gradient kernels begin, and how large a step they bear there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ppl_bnn.batch_density import BatchDensity
from ppl_bnn.inference import batches, start
from ppl_bnn.inference.estimators import at_anchor, plain
from ppl_bnn.inference.preconditioner import diagonal
from ppl_bnn.inference.sgmcmc_options import is_known
from ppl_bnn.inference.sgmcmc_settings import Settings
from ppl_bnn.inference.sgmcmc_transition import CoreStep, SGMCMCState, Step
from ppl_bnn.inference.tree_math import dot, normal_like, times
from ppl_bnn.prior_scale import prior_scales, prior_widths
from ppl_bnn.target import Target

Tree = dict[str, jax.Array]

POWER_ITERATIONS = 10
NUDGE = 1e-2  # length of the difference by which a gradient's derivative is taken


def begin(
    rng_key: jax.Array,
    position: Tree | None,
    target: Target,
    settings: Settings,
    density: BatchDensity,
    scales: dict[str, np.ndarray] | None,
    core_init: Callable[[jax.Array, Tree, jax.Array], Any],
    core_step: CoreStep,
    preconditioner: Any,
) -> tuple[SGMCMCState, jax.Array]:
    """State of one chain, at `position` if it is given, and the largest curvature there."""
    assert target.rows is not None
    num_rows = target.rows.num_rows
    keys = jax.random.split(rng_key, 6)
    key_start, key_warm, key_core, key_place, key_curvature, rng_key = keys
    if position is None:
        values = start.initial_values(key_start, target, settings.init_strategy)
        position = target.unconstrain(values)
        if settings.warm_start:
            assert scales is not None  # known before tracing, where no position is given
            position = warm_start(key_warm, position, settings, density, num_rows, scales)
    step_size, temperature = settings.step_size_at(0), settings.temperature_at(0)
    core = core_init(key_core, position, temperature)

    def first_info(core):
        no_gradient = jnp.zeros(()), jax.tree.map(jnp.zeros_like, position)
        first = Step(
            number=jnp.int32(0),
            rng_key=key_core,
            gradient=lambda _: no_gradient,
            potential=lambda _: jnp.zeros(()),
            step_size=step_size,
            temperature=temperature,
            in_warmup=jnp.asarray(True),
            by_site=lambda value: value,
            noise=None,
        )
        return core_step(core, first)[1]

    shapes = jax.eval_shape(first_info, core)
    number = jnp.result_type(float)
    info = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, number), shapes)
    anchor = None
    if settings.gradient != "plain":
        anchor = at_anchor(position, density.all_rows)
    curvature = largest_curvature(
        key_curvature, position, settings, density, num_rows, preconditioner
    )
    state = SGMCMCState(
        i=jnp.int32(0),
        z=position,
        core=core._replace(position=None),
        anchor=anchor,
        place=batches.first_place(key_place),
        info=info,
        potential_energy=jnp.zeros((), number),
        step_size=step_size,
        temperature=temperature,
        is_kept=jnp.asarray(True),
        failed_at=jnp.int32(-1),
        failed_site=jnp.int32(-1),
        num_warmup=jnp.int32(0),
        data=target.fingerprint,
        rng_key=rng_key,
    )
    return state, curvature


def warm_start(
    rng_key: jax.Array,
    position: Tree,
    settings: Settings,
    density: BatchDensity,
    num_rows: int,
    scales: dict[str, np.ndarray],
) -> Tree:
    """Adam on minibatches, with steps in units of `scales` that fall to zero."""
    rate = optax.cosine_decay_schedule(start.LEARNING_RATE, settings.warm_start)
    optimizer = optax.chain(optax.clip(start.CLIP), optax.adam(rate, b2=0.9))

    def body(k, carry):
        position, state = carry
        index, _ = batches.draw(
            jax.random.fold_in(rng_key, k),
            None,
            num_rows=num_rows,
            batch_size=settings.batch_size,
            batching="iid",
        )
        batch = density.take(index[0])
        _, gradient = plain(density.log_density, batch, settings.temperature_at(0))(position)
        downhill = {name: jnp.nan_to_num(gradient[name] * scales[name]) for name in gradient}
        updates, state = optimizer.update(downhill, state)
        moved = {
            name: position[name] + (updates[name] * scales[name]).astype(position[name].dtype)
            for name in position
        }
        return moved, state

    carry = (position, optimizer.init(position))
    return jax.lax.fori_loop(0, settings.warm_start, body, carry)[0]


def step_scales(target: Target) -> dict[str, np.ndarray]:
    """Prior standard deviations, or what stands in for them, of each unconstrained site."""
    scales = prior_scales(target.model, target.names, *target.probe)
    if all(np.isfinite(scale).all() for scale in scales.values()):
        return scales
    widths = prior_widths(target.model, target.names, *target.probe)
    return {name: np.where(np.isfinite(s), s, widths[name]) for name, s in scales.items()}


def check_start(target: Target, positions: Tree, arrays: Any) -> None:
    """Refuse positions, one for each chain, at which a few rows' log density is not finite."""
    if "probe" not in target.starts:  # compiled once, so that a second run traces nothing
        target.starts["probe"] = jax.jit(jax.vmap(lambda z: jnp.sum(target.probe_terms(z))))
    terms = target.starts["probe"](positions)
    for chain in np.flatnonzero(~np.isfinite(terms)):
        position = {name: value[chain] for name, value in positions.items()}
        raise ValueError(
            f"chain {chain} cannot start: {target.describe(position, arrays)}. Start elsewhere "
            "(`init_strategy`), narrow the priors, or check the scale of inputs and targets."
        )


def largest_curvature(
    rng_key: jax.Array,
    position: Tree,
    settings: Settings,
    density: BatchDensity,
    num_rows: int,
    preconditioner: Any,
) -> jax.Array:
    """Largest eigenvalue of the potential's Hessian on one batch, from below, shape ().

    By power iteration on differences of gradients, which every likelihood has. With a fixed
    preconditioner G, a dictionary, it is that of G times the Hessian; 0 where G is not known yet.
    """
    scale = None
    if not is_known(preconditioner):
        return jnp.zeros(())
    if preconditioner != "identity":
        scale = diagonal(preconditioner).init(position)
    key_batch, key_direction = jax.random.split(rng_key)
    index, _ = batches.draw(
        key_batch,
        None,
        num_rows=num_rows,
        batch_size=settings.batch_size,
        batching="without_replacement",
    )
    batch = density.take(index[0])
    gradient = plain(density.log_density, batch, settings.temperature_at(0))

    def body(k, carry):
        direction, here, _ = carry
        length = jnp.sqrt(dot(direction, direction))
        direction = jax.tree.map(lambda v: v / length.astype(v.dtype), direction)
        # the first round stays where it is, so that the program holds one gradient and not two
        nudge = jnp.where(k == 0, 0.0, NUDGE)
        nudged = jax.tree.map(lambda z, v: z + times(nudge, v), position, direction)
        _, there = gradient(nudged)
        change = jax.tree.map(lambda a, b: (a - b) / NUDGE, there, here)
        if scale is not None:
            change = jax.tree.map(jnp.multiply, scale, change)
        first = direction, there, jnp.zeros((), jnp.result_type(float))
        later = change, here, jnp.sqrt(dot(change, change))
        return jax.tree.map(lambda a, b: jnp.where(k == 0, a, b), first, later)

    zeros = jax.tree.map(jnp.zeros_like, position)
    carry = normal_like(key_direction, position), zeros, jnp.zeros((), jnp.result_type(float))
    return jax.lax.fori_loop(0, 1 + POWER_ITERATIONS, body, carry)[2]


def warn_unstable(step_size: jax.Array, curvature: jax.Array) -> None:
    """Say so if the first step size is beyond what a Gaussian of that curvature bears."""
    largest = float(np.max(np.nan_to_num(curvature)))
    if largest * float(np.max(step_size)) > 2:
        warnings.warn(
            f"`step_size` begins at {float(np.max(step_size)):.3g}, beyond the limit of stability "
            f"where the chains start: 2 / (largest curvature) = {2 / largest:.2g}, measured on a "
            f"minibatch. Chains will most likely diverge. Begin with {0.1 / largest:.1g}.",
            RuntimeWarning,
            stacklevel=2,
        )
