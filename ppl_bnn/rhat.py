"""R-hat, the ratio of the spread of all draws to the spread within chains, in two definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from ppl_bnn._arviz import posterior
from ppl_bnn.draws import COMPONENTS

METHODS = {
    "rank": "Rank-normalised split R-hat (ArviZ)",
    "izmailov": "R-hat without split, ranks and square root (Izmailov et al.)",
}
# Ranking makes some ten float64 copies of what it ranks.
QUANTITIES_AT_ONCE = 4096


@dataclass(frozen=True)
class RHat:
    """R-hat of many quantities.

    Attributes
    ----------
    method
        "rank" or "izmailov".
    variables
        Variable name -> masked array of R-hat, shaped as the variable without chain and draw.
        Quantities that are constant over all draws or not always finite have no R-hat and are
        masked. A quantity that is constant in each chain but differs between chains has inf.
    num_constant
        Number of quantities with one value in all draws of all chains.
    num_nonfinite
        Number of quantities with NaN or infinite values.
    """

    method: str
    variables: dict[str, np.ma.MaskedArray]
    num_constant: int
    num_nonfinite: int

    @property
    def values(self) -> np.ndarray:
        """All R-hats that exist, in one dimension."""
        return np.concatenate([value.compressed() for value in self.variables.values()])

    @property
    def max(self) -> float:
        """The largest R-hat; NaN if no quantity has one."""
        return float(self.values.max()) if self.values.size else float("nan")

    @property
    def median(self) -> float:
        """The median R-hat; NaN if no quantity has one."""
        return float(np.median(self.values)) if self.values.size else float("nan")

    def share_below(self, threshold: float) -> float:
        """Share of the quantities that have an R-hat for which it is below `threshold`."""
        return float(np.mean(self.values < threshold)) if self.values.size else float("nan")

    def worst(self, count: int = 5) -> list[tuple[str, tuple[int, ...], float]]:
        """The quantities with the largest R-hat, as (variable, index, R-hat)."""
        entries = [
            (name, tuple(map(int, index)), float(value[tuple(index)]))
            for name, value in self.variables.items()
            for index in np.argwhere(~np.ma.getmaskarray(value))
        ]
        return sorted(entries, key=lambda entry: -entry[2])[:count]

    def __str__(self) -> str:
        text = (
            f"{METHODS[self.method]}: median {self.median:.4g}, max {self.max:.4g} over "
            f"{self.values.size} quantities"
        )
        if self.num_constant:
            text += f"; {self.num_constant} constant over all draws left out"
        if self.num_nonfinite:
            text += f"; {self.num_nonfinite} with NaN or infinite draws left out"
        return text


def refuse_components(what: str) -> None:
    """Refuse to judge the convergence of what did not come from chains."""
    raise ValueError(
        f"what stands in the place of chains are {what}: R-hat says nothing of them. Compare them "
        "by `ppl_bnn.metrics.diversity`, or with the predictions of HMC."
    )


def rhat(draws: Any, method: str = "rank") -> RHat:
    """R-hat of every quantity, the constant ones left out and counted.

    Parameters
    ----------
    draws
        What `function_space` returns (or any ArviZ object with a posterior), an array of shape
        (chain, draw, ...), or a dictionary of such arrays.
    method
        "rank": the larger of the rank-normalised split R-hats of the draws and of their distance
        from the median (Vehtari et al. 2021), the number that `arviz.rhat` gives, not rounded.
        "izmailov": no split, no ranks and no square root, as in Izmailov et al. 2021 (by way of
        TFP's `potential_scale_reduction`, Brooks & Gelman 1998): with m chains of n draws,
        ``(m + 1) / m * (W + B/n) / W - (n - 1) / (m n)``, W the mean variance within chains
        (divided by n) and B/n the variance of the chains' means (divided by m - 1). It is close
        to the square of other definitions, hence larger.

    Returns
    -------
    RHat
        Says its method when printed.

    Raises
    ------
    ValueError
        For an unknown method, for fewer than 4 draws, for components of a variational fit, which
        are no chains, and for "izmailov" of a single chain. "rank"
        compares the two halves of a single chain, which shows drift but not a second mode.
    """
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {sorted(METHODS)}, got {method!r}")
    found = posterior(draws)
    words = None if found is None else found.attrs.get(COMPONENTS)
    if words:
        refuse_components(words)
    variables = {}
    num_constant = num_nonfinite = 0
    arrays = named_arrays(draws)
    counts = {name: value.shape[:2] for name, value in arrays.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            "all arrays of `draws` must start with the same (chain, draw), as those of "
            f"`mcmc.get_samples(group_by_chain=True)` do; got {counts}"
        )
    for name, value in arrays.items():
        flat = value.reshape(*value.shape[:2], -1)
        _check_size(name, flat, method)
        finite = np.isfinite(flat).all(axis=(0, 1))
        constant = (flat == flat[:1, :1]).all(axis=(0, 1))
        num_nonfinite += int(np.sum(~finite))
        num_constant += int(np.sum(constant & finite))
        defined = np.flatnonzero(finite & ~constant)
        result = np.ma.masked_all(flat.shape[2], dtype=float)
        formula = rank_rhat if method == "rank" else izmailov_rhat
        for start in range(0, len(defined), QUANTITIES_AT_ONCE):
            part = defined[start : start + QUANTITIES_AT_ONCE]
            result[part] = formula(flat[:, :, part])
        variables[name] = result.reshape(value.shape[2:])
    return RHat(method, variables, num_constant, num_nonfinite)


def named_arrays(draws: Any) -> dict[str, np.ndarray]:
    """The (chain, draw, ...) arrays of an ArviZ object, a dictionary or a single array, by name."""
    dataset = posterior(draws)
    if dataset is not None:
        return {
            str(name): variable.transpose("chain", "draw", ...).values
            for name, variable in dataset.data_vars.items()
        }
    if isinstance(draws, Mapping):
        return {name: np.asarray(value) for name, value in draws.items()}
    if hasattr(draws, "shape"):
        return {"x": np.asarray(draws)}
    raise TypeError(
        "`draws` must be what `function_space` returns, an array of shape (chain, draw, ...), or "
        f"a dictionary of such arrays; got {type(draws).__name__}. Judge predictions: "
        "`function_space(draws, x)` first."
    )


def rank_rhat(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat of (chain, draw, quantity), written for many quantities.

    Distances from the median are taken in the precision of the draws, as ArviZ takes them: the two
    draws next to a median are tied or not by their rounding.
    """
    half = draws.shape[1] // 2
    split = np.concatenate([draws[:, :half], draws[:, -half:]])
    folded = np.abs(split - np.median(split, axis=(0, 1)))
    return np.maximum(_gelman_rubin(_normal_scores(split)), _gelman_rubin(_normal_scores(folded)))


def izmailov_rhat(draws: np.ndarray) -> np.ndarray:
    """The R-hat of Izmailov et al. (2021) of (chain, draw, quantity)."""
    m, n = draws.shape[:2]
    draws = draws.astype(float)
    within = draws.var(axis=1).mean(axis=0)
    between = draws.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore"):
        return (m + 1) / m * (within + between) / within - (n - 1) / (m * n)


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    ranks = rankdata(draws.reshape(-1, draws.shape[-1]), axis=0).reshape(draws.shape)
    return ndtri((ranks - 0.375) / (draws.shape[0] * draws.shape[1] + 0.25))


def _gelman_rubin(draws: np.ndarray) -> np.ndarray:
    n = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    between = draws.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt((n - 1) / n + between / within)
    # Without any variance the draws have one distance from the median: nothing disagrees there.
    return np.where((within == 0) & (between == 0), 1.0, ratio)


def _check_size(name: str, flat: np.ndarray, method: str) -> None:
    num_chains, num_draws = flat.shape[:2]
    if method == "izmailov" and num_chains < 2:
        raise ValueError(
            f"method 'izmailov' compares chains and needs at least 2, but {name!r} has "
            f"{num_chains}: run more chains, or use method='rank', which splits the chain"
        )
    if num_draws < 4:
        raise ValueError(f"R-hat needs at least 4 draws in each chain, {name!r} has {num_draws}")
