"""Where chains begin: a draw, a value, or the network's own initialisation, then a short descent.

A draw from a wide prior can have a log likelihood of -10^7, and from there an adapted step
collapses before the chain has moved. A few hundred optimiser steps per chain, each from its own
start, cost less than the transitions they save. They end near a mode, so the warm-up that follows
must reach the bulk of the posterior, which a handful of trajectories do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro import handlers

from ppl_bnn.inference.hmc import State, evaluate, leapfrog
from ppl_bnn.inference.hmc import init as init_state
from ppl_bnn.inference.mass_matrix import Metric, Tree, kinetic_difference, sample_momentum
from ppl_bnn.target import Target

LEARNING_RATE = 0.05  # in prior standard deviations
CLIP = 1e6


def initial_values(rng_key: jax.Array, target: Target, init_strategy: Any) -> dict[str, jax.Array]:
    """Constrained values of all latent sites at which one chain starts.

    Parameters
    ----------
    rng_key : jax.Array
        The chain's key.
    target : Target
        The posterior.
    init_strategy : "prior", "network", callable or dict
        A draw from the prior; for sites of `ppl_bnn.random_module` a draw with mean and standard
        deviation of the network's own initial values, the others from the prior; one of NumPyro's
        ``init_to_*`` strategies; or values by site, the others from the prior.
    """
    key_model, key_network = jax.random.split(rng_key)
    model = handlers.seed(target.model, key_model)
    if isinstance(init_strategy, Mapping):
        target.check_values(init_strategy)
        typed = {n: jnp.asarray(x, target.sites[n]["dtype"]) for n, x in init_strategy.items()}
        model = handlers.substitute(model, data=typed)
    elif callable(init_strategy):
        model = handlers.substitute(model, substitute_fn=init_strategy)
    elif init_strategy == "network":
        model = handlers.substitute(model, substitute_fn=partial(_like_network, key_network))
    with handlers.block():
        trace = handlers.trace(model).get_trace(*target.probe[0], **target.probe[1])
    return {name: trace[name]["value"] for name in target.names}


def check_init_strategy(init_strategy: Any) -> None:
    """Refuse what `initial_values` does not know."""
    known = ("prior", "network")
    if not (
        isinstance(init_strategy, Mapping) or callable(init_strategy) or init_strategy in known
    ):
        raise ValueError(
            "`init_strategy` must be 'prior', 'network', a numpyro.infer.init_to_* strategy "
            "or a dict of "
            f"values by site, got {init_strategy!r}."
        )


def _like_network(rng_key: jax.Array, site: dict[str, Any]) -> jax.Array | None:
    initial = site.get("infer", {}).get("initial_value")
    if site["type"] != "sample" or initial is None:
        return None
    initial = jnp.asarray(initial())
    name_key = jax.random.fold_in(rng_key, sum(map(ord, site["name"])))
    spread = jnp.std(initial) if initial.size > 1 else 0.0
    return jnp.mean(initial) + spread * jax.random.normal(name_key, initial.shape, initial.dtype)


def begin(
    rng_key: jax.Array,
    position: Tree | None,
    target: Target,
    log_density: Callable[[Tree], jax.Array],
    metric: Metric,
    trajectory_length: float,
    settings: Any,
) -> tuple[State, jax.Array, jax.Array]:
    """Start one chain, at `position` if it is given: its state, step size and next key."""
    key_start, key_step, rng_key = jax.random.split(rng_key, 3)
    if position is None:
        values = initial_values(key_start, target, settings.init_strategy)
        position = target.unconstrain(values)
        if settings.warm_start:
            scale = {n: jnp.ones_like(x) for n, x in position.items()}
            scale |= {n: jnp.sqrt(inverse) for n, inverse in metric.diagonal.items()}
            position = descend(log_density, position, scale, settings.warm_start)
    state = init_state(position, log_density)
    if settings.step_size is not None:
        step_size = jnp.asarray(settings.step_size, jnp.result_type(float))
    else:
        step_size = first_step_size(
            key_step, log_density, state, metric, settings.temperature, trajectory_length
        )
    return state, step_size, rng_key


def check_start(target: Target, state: State, arrays: Sequence[jax.Array], batched: bool) -> None:
    """Refuse starts at which the log density or its gradient is not finite.

    Raises
    ------
    ValueError
        Names the chain, the sites and their values.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state)):
        return
    chains = state if batched else jax.tree.map(lambda x: x[None], state)
    finite = jnp.isfinite(chains.terms).all(axis=-1)
    for leaf in jax.tree.leaves(chains.gradient):
        finite &= jnp.isfinite(leaf.reshape(len(leaf), -1)).all(axis=-1)
    for chain in np.flatnonzero(~np.asarray(finite)):
        position = {name: value[chain] for name, value in chains.position.items()}
        raise ValueError(
            f"chain {chain} cannot start: {target.describe(position, arrays)}. Start elsewhere "
            "(`init_strategy`), narrow the priors, or check the scale of inputs and targets."
        )


def descend(
    log_density: Callable[[Tree], jax.Array], position: Tree, scale: Tree, num_steps: int
) -> Tree:
    """Adam on the log density, in units of `scale`; the best position seen is kept.

    Far from the posterior gradients reach 10^18. So they are clipped, and their squares are
    forgotten within tens of steps: with Adam's usual memory of a thousand, the first few would hold
    the chain where it began.
    """
    optimizer = optax.chain(
        optax.clip(CLIP), optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, num_steps), b2=0.9)
    )

    def body(_, carry):
        position, state, best, best_value = carry
        terms, gradient = evaluate(log_density, position)
        value = jnp.sum(terms)
        better = value > best_value  # false for NaN
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), position, best)
        best_value = jnp.where(better, value, best_value)
        downhill = {
            name: jnp.nan_to_num(-gradient[name] * scale[name], posinf=CLIP, neginf=-CLIP)
            for name in gradient
        }
        updates, state = optimizer.update(downhill, state)
        moved = {
            name: position[name] + (updates[name] * scale[name]).astype(position[name].dtype)
            for name in position
        }
        return moved, state, best, best_value

    lowest = jnp.asarray(-jnp.inf, jnp.result_type(*jax.tree.leaves(position)))
    carry = (position, optimizer.init(position), position, lowest)
    return jax.lax.fori_loop(0, num_steps, body, carry)[2]


def first_step_size(
    rng_key: jax.Array,
    log_density: Callable[[Tree], jax.Array],
    state: State,
    metric: Metric,
    temperature: float,
    trajectory_length: float,
) -> jax.Array:
    """Largest of `trajectory_length` / 2^k whose short trajectory is accepted half of the time.

    Ten leapfrog steps are tried, for a single one says little about the stability of many.
    """
    momentum = sample_momentum(rng_key, metric, state.position, temperature)

    def too_large(step_size):
        end, end_momentum = leapfrog(log_density, metric, state, momentum, step_size, 10)
        gain = jnp.sum(end.terms - state.terms)
        error = kinetic_difference(metric, end_momentum, momentum) - gain
        return ~(error / temperature < jnp.log(2.0)) & (step_size > 1e-7 * trajectory_length)

    start = jnp.asarray(trajectory_length / 4, jnp.result_type(float))
    return jax.lax.while_loop(too_large, lambda step_size: step_size / 2, start)
