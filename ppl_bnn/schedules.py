"""Step sizes over time: functions from the number of steps taken, counted from 0, to a step size.

Every optax schedule is one too. `cyclical` also knows which part of its cycle a step belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array | int], jax.Array | float]


def constant(step_size: float) -> Schedule:
    """The same step size throughout.

    Raises
    ------
    ValueError
        If `step_size` is not positive and finite.
    """
    _check_positive(step_size=step_size)
    return lambda step: step_size


def polynomial(a: float, b: float = 1.0, gamma: float = 0.55) -> Schedule:
    """h_t = a (b + t) ** -gamma (Welling & Teh 2011, section 4, whose step is twice ours).

    Parameters
    ----------
    a : float
        The first step size is ``a * b ** -gamma``.
    b : float
        Number of steps after which the decay sets in.
    gamma : float
        In (0, 1]. The draws' distribution converges for gamma in (0.5, 1]; weighted by their step
        sizes, averages over draws converge for all, fastest at 1/3 (Teh, Thiery & Vollmer 2016).

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    Examples
    --------
    >>> float(polynomial(0.1, b=4.0, gamma=0.5)(0))
    0.05
    """
    _check_positive(a=a, b=b, gamma=gamma)
    if gamma > 1:
        raise ValueError(
            f"`gamma` must be at most 1, got {gamma}: the sum of the step sizes would be finite, "
            "and the chain would stop before it has seen the whole posterior."
        )
    return lambda step: a * (b + jnp.asarray(step, jnp.result_type(float))) ** -gamma


def warm_down(initial: float, final: float, num_steps: int) -> Schedule:
    """From `initial` to `final` along half a cosine, then constant.

    Parameters
    ----------
    initial, final : float
        Step sizes at step 0, and from step `num_steps` on.
    num_steps : int
        Length of the descent.

    Raises
    ------
    ValueError
        If a step size is not positive and finite, `final` is above `initial`, or `num_steps` is
        less than 1.
    """
    _check_positive(initial=initial, final=final)
    _check_count("num_steps", num_steps)
    if final > initial:
        raise ValueError(f"`final` must be at most `initial`, got {final} > {initial}.")

    def schedule(step: jax.Array | int) -> jax.Array:
        share = jnp.minimum(jnp.asarray(step), num_steps) / num_steps
        return final + (initial - final) / 2 * (jnp.cos(jnp.pi * share) + 1)

    return schedule


@dataclass(frozen=True)
class Cyclical:
    """Made by `cyclical`; called with a step, its step size."""

    step_size: float
    cycle_length: int
    exploration: float
    kept: float

    def __call__(self, step: jax.Array | int) -> jax.Array:
        """Step size of a step."""
        share = self._place(step) / self.cycle_length
        return self.step_size / 2 * (jnp.cos(jnp.pi * share) + 1)

    def is_sampling(self, step: jax.Array | int) -> jax.Array:
        """Whether a step belongs to the sampling stage: it injects noise."""
        return self._place(step) >= self._first(self.exploration)

    def is_kept(self, step: jax.Array | int) -> jax.Array:
        """Whether the position after a step may be kept as a draw."""
        return self._place(step) >= self._first(self.kept)

    def _place(self, step: jax.Array | int) -> jax.Array:
        return jnp.asarray(step) % self.cycle_length

    def _first(self, share: float) -> int:
        # a share that rounding put just above a whole number of steps means that number
        return math.ceil(share * self.cycle_length - 1e-9 * self.cycle_length)


def cyclical(
    step_size: float,
    cycle_length: int,
    *,
    exploration: float = 0.25,
    kept: float | None = None,
) -> Cyclical:
    """Cosine cycles: h_t = h_0 / 2 (cos(pi r) + 1), r = (t mod L) / L the share of the cycle done.

    Zhang, Li, Zhang, Chen & Wilson (2020), *Cyclical stochastic gradient MCMC for Bayesian deep
    learning*, eq. 1 and algorithm 1. Each cycle begins with an exploration stage, r below
    `exploration`, that injects no noise (run the kernel at temperature 0), and ends with a
    sampling stage.

    Parameters
    ----------
    step_size : float
        h_0, the largest, at which each cycle begins.
    cycle_length : int
        L, in steps: for M cycles in K steps, K / M rounded up.
    exploration : float
        In [0, 1).
    kept : float, optional
        In [exploration, 1): draws are kept once this share of a cycle is done. By default
        `exploration`, which keeps the whole sampling stage.

    Returns
    -------
    Cyclical
        A schedule with methods ``is_sampling(step)`` and ``is_kept(step)``.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> schedule = cyclical(0.5, 50, exploration=0.8)
    >>> float(schedule(25)), bool(schedule.is_sampling(39)), bool(schedule.is_sampling(40))
    (0.25, False, True)
    """
    _check_positive(step_size=step_size)
    _check_count("cycle_length", cycle_length)
    kept = exploration if kept is None else kept
    for name, share, least in (("exploration", exploration, 0.0), ("kept", kept, exploration)):
        if not least <= share < 1:
            raise ValueError(
                f"`{name}` must be in [{least:g}, 1), a share of the cycle, got {share}."
            )
    schedule = Cyclical(step_size, cycle_length, exploration, kept)
    if schedule._first(kept) >= cycle_length:
        raise ValueError(
            f"a cycle of `cycle_length` {cycle_length} steps keeps no draw, with `kept` {kept:g}: "
            f"use a longer cycle or a `kept` of at most {(cycle_length - 1) / cycle_length:g}."
        )
    return schedule


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")


def _check_count(name: str, value: int) -> None:
    if value < 1 or value != int(value):
        raise ValueError(f"`{name}` must be a whole number of steps, at least 1, got {value}.")
