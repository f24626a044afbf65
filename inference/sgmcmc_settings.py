"""What all stochastic-gradient kernels are told: checked at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ppl_bnn.arguments import check_choice, check_integer, is_number
from ppl_bnn.inference.batches import BATCHING
from ppl_bnn.inference.estimators import GRADIENTS
from ppl_bnn.inference.start import check_init_strategy
from ppl_bnn.mesh import check_mesh
from ppl_bnn.row_likelihood import check_chunk_size

Schedule = Callable[[jax.Array | int], jax.Array | float]


@dataclass(frozen=True)
class Settings:
    """The options that stochastic-gradient kernels share; `SGLD` describes them."""

    step_size: float | Schedule
    batch_size: int
    batching: str = "iid"
    gradient: str = "plain"
    refresh_interval: int | None = None
    temperature: float | Schedule = 1.0
    steps_per_draw: int = 1
    mesh: Mesh | None = None
    chunk_size: int | None = None
    init_strategy: Any = "prior"
    warm_start: int = 1000
    batches: Any = None

    def __post_init__(self) -> None:
        for name in ("step_size", "temperature"):
            check_schedule(name, getattr(self, name), allow_zero=name == "temperature")
        for name, least in (("batch_size", 1), ("steps_per_draw", 1), ("warm_start", 0)):
            check_integer(name, getattr(self, name), least)
        for name, allowed in (("batching", BATCHING), ("gradient", GRADIENTS)):
            check_choice(name, getattr(self, name), allowed)
        if (self.gradient == "svrg") != (self.refresh_interval is not None):
            raise ValueError(
                "`refresh_interval`, the number of steps after which the anchor moves to the "
                "chain, goes with gradient='svrg' and with nothing else; got "
                f"gradient={self.gradient!r} and refresh_interval={self.refresh_interval!r}."
            )
        if self.refresh_interval is not None:
            check_integer("refresh_interval", self.refresh_interval, 1)
        check_init_strategy(self.init_strategy)
        check_mesh(self.mesh)
        check_chunk_size(self.chunk_size)

    def step_size_at(self, step: jax.Array | int) -> jax.Array:
        """Step size of a step, counted from 0."""
        return at(self.step_size, step)

    def temperature_at(self, step: jax.Array | int) -> jax.Array:
        """Temperature that the chain samples at."""
        return at(self.temperature, step)

    def noise_temperature_at(self, step: jax.Array | int) -> jax.Array:
        """Temperature of the injected noise, 0 in the exploration stage of a cyclical schedule."""
        temperature = self.temperature_at(step)
        if hasattr(self.step_size, "is_sampling"):
            temperature = temperature * self.step_size.is_sampling(step)
        return temperature

    def is_kept_at(self, step: jax.Array | int) -> jax.Array:
        """Whether the position after a step may be kept; not so early in a cyclical schedule."""
        if hasattr(self.step_size, "is_kept"):
            return self.step_size.is_kept(step)
        return jax.numpy.asarray(True)


def at(schedule: float | Schedule, step: jax.Array | int) -> jax.Array:
    """Value of a schedule, or the number that it is."""
    value = schedule(step) if callable(schedule) else schedule
    return jax.numpy.asarray(value, jax.numpy.result_type(float))


def check_schedule(name: str, value: Any, *, allow_zero: bool = False) -> None:
    """Refuse what is neither a schedule nor a positive number."""
    if callable(value):
        first = value(0)
        if np.shape(first) != () or np.asarray(first).dtype.kind not in "fiu":
            raise ValueError(
                f"`{name}` is a schedule, which must give one number for each step; for step 0 it "
                f"gave {first!r}."
            )
        return
    is_finite = is_number(value) and math.isfinite(value)
    if not is_finite or value < 0 or (value == 0 and not allow_zero):
        least = "a number of at least 0" if allow_zero else "a positive number"
        raise ValueError(
            f"`{name}` must be {least}, or a schedule (a function of the step's number, such as "
            f"those of `ppl_bnn.schedules` and of optax), got {value!r}."
        )
