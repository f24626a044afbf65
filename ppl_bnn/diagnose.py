"""Judging a run: whether its predictions agree between chains, and whether the sampler worked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import xarray as xr

from ppl_bnn import _arviz
from ppl_bnn.diagnosis import Diagnosis
from ppl_bnn.draws import NO_CHAINS, as_draws
from ppl_bnn.function_space import parameter_draws
from ppl_bnn.replay import Replay
from ppl_bnn.rhat import RHat, named_arrays, refuse_components, rhat


def diagnose(
    draws: Any,
    x: Any,
    *,
    max_points: int = 500,
    model: Callable | None = None,
    site: str | None = None,
    group_by_chain: bool = False,
    batch_size: int = 16,
    points_batch_size: int | None = 1024,
    model_kwargs: dict[str, Any] | None = None,
) -> Diagnosis:
    """Judge the convergence of a run by its predictions at `x`, and the sampler by its statistics.

    Parameters
    ----------
    draws, x, model, site, group_by_chain, batch_size, points_batch_size, model_kwargs
        As for `function_space`.
    max_points
        At most so many rows of `x` are looked at, evenly spaced.

    Returns
    -------
    Diagnosis
        To be printed, or read by its attributes.

    Notes
    -----
    Agreement of predictions between chains is necessary for convergence, never sufficient: chains
    can agree at `x` and differ elsewhere, and can all miss the same mode.
    """
    if max_points < 1:
        raise ValueError(f"`max_points` must be at least 1, got {max_points}")
    found = as_draws(draws, model, group_by_chain=group_by_chain)
    if not found.are_chains:
        refuse_components(NO_CHAINS)
    x, points = _thinned(x, max_points)
    replay = Replay(
        found,
        x,
        site=site,
        batch_size=batch_size,
        points_batch_size=points_batch_size,
        model_kwargs=model_kwargs,
    )
    functions = parameter_draws(replay).assign_coords(point=points)
    judged = rhat(functions) if found.num_draws >= 4 else None
    stats = found.stats
    failed_at = stats["failed_at"][:, -1] if "failed_at" in stats else None
    return Diagnosis(
        rhat=judged,
        worst=_worst(functions, judged) if judged else [],
        ess_bulk=_ess(functions, "bulk"),
        ess_tail=_ess(functions, "tail"),
        num_chains=found.num_chains,
        num_draws=found.num_draws,
        num_points=replay.num_points,
        stuck_chains=_stuck_chains(functions, failed_at),
        num_divergences=int(stats["diverging"].sum()) if "diverging" in stats else None,
        bfmi=_bfmi(stats["energy"]) if "energy" in stats else None,
        acceptance=stats["accept_prob"].mean(axis=1) if "accept_prob" in stats else None,
        failed_at=failed_at,
        num_without_metropolis=_num_without_metropolis(stats),
        uses_batches="is_kept" in stats,
        swap_rate=(
            stats["info.swap_rate"].mean(axis=(0, 1)) if "info.swap_rate" in stats else None
        ),
    )


def _num_without_metropolis(stats: dict[str, np.ndarray]) -> int | None:
    """All draws of stochastic-gradient kernels, which no such test ever sees."""
    if "is_kept" in stats:
        return stats["is_kept"].size
    return int((~stats["metropolis"]).sum()) if "metropolis" in stats else None


def _thinned(x: Any, max_points: int) -> tuple[Any, np.ndarray]:
    """At most `max_points` rows of `x`, and which."""
    x = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf),
        x,
        is_leaf=lambda leaf: isinstance(leaf, list),
    )
    num_rows = min((len(leaf) for leaf in jax.tree.leaves(x) if leaf.ndim), default=0)
    if num_rows <= max_points:
        return x, np.arange(num_rows)
    points = np.linspace(0, num_rows - 1, max_points).round().astype(int)
    return jax.tree.map(lambda leaf: leaf[points], x), points


def _ess(functions: xr.Dataset, method: str) -> np.ndarray:
    if functions.sizes["draw"] < 4:
        return np.empty(0)
    flat = np.concatenate(
        [v.reshape(*v.shape[:2], -1) for v in named_arrays(functions).values()], axis=2
    )
    moving = np.isfinite(flat).all(axis=(0, 1)) & (flat != flat[:1, :1]).any(axis=(0, 1))
    # ArviZ refuses an array without entries.
    return _arviz.ess(flat[:, :, moving], method) if moving.any() else np.empty(0)


def _worst(functions: xr.Dataset, judged: RHat) -> list[tuple[str, float]]:
    def words(name: str, index: tuple[int, ...]) -> str:
        variable = functions[name]
        where = ", ".join(
            f"{dim} {functions[dim].values[i] if dim == 'point' else i}"
            for dim, i in zip(variable.dims[2:], index, strict=True)
        )
        return f"{name} at {where}" if where else name

    return [(words(name, index), value) for name, index, value in judged.worst()]


def _stuck_chains(functions: xr.Dataset, failed_at: np.ndarray | None) -> list[int]:
    arrays = list(named_arrays(functions).values())
    if arrays[0].shape[1] < 2:
        return []
    return [
        chain
        for chain in range(arrays[0].shape[0])
        if (failed_at is not None and failed_at[chain] >= 0)
        or (
            # A prediction that is the same in all chains may be so for a good reason.
            any((v != v[:1, :1]).any() for v in arrays)
            and all((v[chain] == v[chain, :1]).all() for v in arrays)
        )
    ]


def _bfmi(energy: np.ndarray) -> np.ndarray:
    moving = np.ptp(energy, axis=1) > 0
    result = np.full(len(energy), np.nan)
    if moving.any() and energy.shape[1] > 1:
        result[moving] = _arviz.bfmi(energy[moving])
    return result
