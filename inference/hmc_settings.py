"""What a user sets of `ppl_bnn.HMC`: checked at once, and turned into numbers for a posterior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ppl_bnn.arguments import check_integer, is_number
from ppl_bnn.inference.mass_matrix import (
    Metric,
    Tree,
    largest_scale,
    make_metric,
    parse_inverse_mass_matrix,
)
from ppl_bnn.inference.start import check_init_strategy
from ppl_bnn.mesh import check_mesh
from ppl_bnn.prior_scale import prior_scales, prior_widths
from ppl_bnn.row_likelihood import check_chunk_size
from ppl_bnn.target import Target
from ppl_bnn.trajectory import num_leapfrog_steps

NO_LIMIT = 2**30
LIMIT_WHILE_ADAPTING = 100_000
EARLY_LIMIT, EARLY_SHARE = 1_000, 0.1


@dataclass(frozen=True)
class Settings:
    """The options of `ppl_bnn.HMC`, where they are described."""

    step_size: float | None
    trajectory_length: float | None
    num_steps: int | None
    inverse_mass_matrix: Any
    max_num_steps: int | None
    adapt_step_size: bool
    adapt_mass_matrix: bool
    target_accept_prob: float
    temperature: float
    metropolis_in_warmup: bool
    metropolis: bool
    trajectory_jitter: float
    mesh: Mesh | None
    chunk_size: int | None
    init_strategy: Any
    warm_start: int

    def __post_init__(self) -> None:
        for name in ("step_size", "trajectory_length", "temperature"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value < math.inf):
                raise ValueError(f"`{name}` must be a positive, finite number, got {value!r}.")
        for name, least in (("num_steps", 1), ("max_num_steps", 1), ("warm_start", 0)):
            value = getattr(self, name)
            if value is None and name != "warm_start":
                continue
            check_integer(name, value, least)
        for field in fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool | np.bool):
                value = getattr(self, field.name)
                raise ValueError(f"`{field.name}` must be True or False, got {value!r}.")
        if self.num_steps is not None and self.trajectory_length is not None:
            raise ValueError(
                f"both `num_steps` ({self.num_steps}) and `trajectory_length` "
                f"({self.trajectory_length}) were "
                "given. Give one of them: the other follows from it and the step size."
            )
        if not (is_number(self.target_accept_prob) and 0 < self.target_accept_prob < 1):
            raise ValueError(
                f"`target_accept_prob` must lie between 0 and 1, got {self.target_accept_prob!r}."
            )
        if not (is_number(self.trajectory_jitter) and 0 <= self.trajectory_jitter < 1):
            raise ValueError(
                "`trajectory_jitter` must be at least 0 and below 1, got "
                f"{self.trajectory_jitter!r}."
            )
        if not self.adapt_step_size and self.step_size is None:
            raise ValueError("`adapt_step_size=False` needs a `step_size`.")
        kind = self.inverse_mass_matrix
        if isinstance(kind, str) and kind not in ("prior", "identity"):
            raise ValueError(
                "`inverse_mass_matrix` must be 'prior', 'identity', an array or a dictionary, "
                f"got {kind!r}."
            )
        check_init_strategy(self.init_strategy)
        check_mesh(self.mesh)
        check_chunk_size(self.chunk_size)

    @property
    def limit(self) -> int:
        """Leapfrog steps that a transition may take."""
        if self.max_num_steps is not None:
            return self.max_num_steps
        return LIMIT_WHILE_ADAPTING if self.adapt_step_size else NO_LIMIT

    def metric_and_length(self, target: Target, shapes: dict[str, Any]) -> tuple[Metric, float]:
        """Mass matrix, and trajectory length in its units, for a posterior.

        `shapes` is an unconstrained position, or its shapes.
        """
        kind = self.inverse_mass_matrix
        ones = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
        needs_scales = self.trajectory_length is None and self.num_steps is None
        scales = ones
        if needs_scales or (isinstance(kind, str) and kind == "prior"):
            found = prior_scales(target.model, target.names, *target.probe)
            scales = {name: np.asarray(found[name] * one) for name, one in ones.items()}
        unbounded = [name for name, scale in scales.items() if not np.isfinite(scale).all()]
        if unbounded and needs_scales:
            raise ValueError(
                f"the prior of {unbounded} has no finite variance, so no trajectory length follows "
                "from it: give `trajectory_length` (in units of the prior's quartile range / 1.349 "
                "with the default masses; pi / 2 is a start) or `num_steps`."
            )
        constant = [name for name, scale in scales.items() if not (scale > 0).all()]
        if constant:
            raise ValueError(f"the prior of {constant} has variance zero; make it a constant.")
        if isinstance(kind, str) and kind == "prior":
            if unbounded:
                scales |= prior_widths(target.model, unbounded, *target.probe)
            metric = make_metric({name: jnp.asarray(scales[name] ** 2) for name in ones})
        elif isinstance(kind, str):
            metric = make_metric({name: jnp.asarray(one) for name, one in ones.items()})
        else:
            metric = parse_inverse_mass_matrix(kind, ones)
        if self.trajectory_length is not None:
            return metric, float(self.trajectory_length)
        if not needs_scales or self.adapt_mass_matrix:
            return metric, math.pi / 2
        return metric, math.pi / 2 * largest_scale(metric, scales)

    def length(self, trajectory_length: Any, step_size: Any) -> Any:
        """Trajectory length before jitter, which a fixed number of steps ties to the step size."""
        return trajectory_length if self.num_steps is None else self.num_steps * step_size

    def check_num_steps(self, length: Any, step_size: Any) -> None:
        """Refuse a fixed step that needs more leapfrog steps than the user allows."""
        if self.adapt_step_size or isinstance(length * step_size, jax.core.Tracer):
            return
        needed = self.num_steps or num_leapfrog_steps(float(length), float(step_size))
        if needed > self.limit:
            raise ValueError(
                f"trajectories of length {float(length):.4g} with steps of "
                f"{float(step_size):.3g} take {needed:,} "
                f"leapfrog steps, more than `max_num_steps` = {self.limit:,}. Raise it, or "
                "choose a larger "
                "`step_size` or a shorter `trajectory_length`."
            )

    def plan_trajectory(
        self, rng_key: jax.Array, step_size: jax.Array, length: jax.Array, is_early: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Step size, number of steps, and whether these exceed the limit, of one transition.

        Early in the warm-up, while the step size is a guess, trajectories are kept short.
        """
        jitter = self.trajectory_jitter
        factor = jax.random.uniform(
            rng_key, dtype=length.dtype, minval=1 - jitter, maxval=1 + jitter
        )
        wanted = self.num_steps if self.num_steps is not None else length / step_size
        wanted = jnp.maximum(jnp.round(wanted * (factor if jitter else 1)), 1)
        early_limit = min(EARLY_LIMIT, self.limit) if self.adapt_step_size else self.limit
        limit = jnp.where(is_early, early_limit, self.limit)
        is_cut = ~(wanted <= limit)  # true for NaN
        num_steps = jnp.where(is_cut, limit, wanted).astype(jnp.int32)
        if not jitter and self.num_steps is None:
            # whole steps that make up the very length that was asked for
            step_size = jnp.where(is_cut, step_size, length / num_steps)
        return step_size, num_steps, ~(wanted <= self.limit) & ~is_early


def check_init_params(init_params: Any, shapes: dict[str, Any], num_chains: int | None) -> Tree:
    """Unconstrained positions to start from, one for each vectorised chain."""
    if not isinstance(init_params, Mapping) or set(init_params) != set(shapes):
        got = sorted(init_params) if isinstance(init_params, Mapping) else init_params
        raise ValueError(
            f"`init_params` must hold the unconstrained sites {sorted(shapes)}, got {got}."
        )
    chains = () if num_chains is None else (num_chains,)
    for name, shape in shapes.items():
        if jnp.shape(init_params[name]) != chains + shape.shape:
            raise ValueError(
                f"`init_params[{name!r}]` has shape {jnp.shape(init_params[name])}, expected "
                f"{chains + shape.shape}."
            )
    return {n: jnp.asarray(init_params[n], shape.dtype) for n, shape in shapes.items()}


def warn_collapse(
    has_failed: Any, failed_at: Any, step_size: Any, accept_prob: Any, limit: int
) -> None:
    """Say that, when and why the kernel froze, if it did."""
    if not has_failed:  # under `vmap` both branches of the caller's condition run
        return
    warnings.warn(
        f"HMC froze at transition {int(failed_at)}: with a step size of {float(step_size):.2e} "
        "a trajectory needs "
        f"more than max_num_steps = {limit:,} leapfrog steps (mean acceptance so far "
        f"{float(accept_prob):.2f}). Draws before that are kept, later ones repeat the last. "
        "The usual "
        "cause is a chain that began far from the posterior: use `warm_start`, check that "
        "inputs and "
        "targets are standardised, and that no prior lets a noise scale go to zero. If the "
        "posterior "
        "really needs such steps, raise `max_num_steps`.",
        RuntimeWarning,
        stacklevel=2,
    )
