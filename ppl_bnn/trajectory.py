"""How long a trajectory should be: a quarter turn of the prior's oscillator."""

from __future__ import annotations

import math


def trajectory_length(prior_scale: float) -> float:
    """Trajectory length for unit masses under a prior of standard deviation `prior_scale`.

    Parameters
    ----------
    prior_scale : float
        Prior standard deviation alpha of the (unconstrained) parameters; of the widest, if they
        differ.

    Returns
    -------
    float
        pi * alpha / 2, in units of the parameters: under the prior alone the dynamics turn in
        phase space with period 2 pi alpha, and after a quarter of it a position is independent of
        where it began (Izmailov et al. 2021, section 4).

    Raises
    ------
    ValueError
        If `prior_scale` is not positive and finite.

    Examples
    --------
    >>> round(trajectory_length(math.sqrt(1 / 5)), 3)
    0.702
    """
    if not (prior_scale > 0 and math.isfinite(prior_scale)):
        raise ValueError(
            f"`prior_scale` must be positive and finite, got {prior_scale}. A prior without finite "
            "variance has no oscillator to turn: choose a trajectory length by hand."
        )
    return math.pi * float(prior_scale) / 2


def num_leapfrog_steps(trajectory_length: float, step_size: float) -> int:
    """Number of leapfrog steps, to the nearest whole step and at least one.

    Parameters
    ----------
    trajectory_length, step_size : float
        In the same units.

    Examples
    --------
    >>> num_leapfrog_steps(trajectory_length(math.sqrt(1 / 5)), 1e-5)
    70248
    """
    if not (trajectory_length > 0 and step_size > 0):
        raise ValueError(
            f"`trajectory_length` and `step_size` must be positive, got {trajectory_length} and "
            f"{step_size}."
        )
    return max(1, round(trajectory_length / step_size))
