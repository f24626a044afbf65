"""The difference between ArviZ 0.23 (Python 3.11) and 1.x: `InferenceData` and `DataTree`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

with warnings.catch_warnings():
    # 0.23 announces 1.0 on import; both are supported here.
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as az

IS_LEGACY = az.__version__.startswith("0.")


def from_groups(groups: dict[str, xr.Dataset]) -> Any:
    """An ArviZ object of these groups: `InferenceData` on 0.23, `DataTree` on 1.x."""
    # some of ArviZ's plots look for the coordinates of every dimension
    numbered = {
        name: group.assign_coords(
            {dim: np.arange(size) for dim, size in group.sizes.items() if dim not in group.coords}
        )
        for name, group in groups.items()
    }
    if IS_LEGACY:
        legacy: Any = az.InferenceData
        return legacy(**numbered)
    return xr.DataTree.from_dict(numbered)


def posterior(data: Any) -> xr.Dataset | None:
    """The posterior group of an ArviZ object; None for anything else."""
    if isinstance(data, xr.Dataset):
        return data
    if isinstance(data, xr.DataTree):
        return data["posterior"].to_dataset() if "posterior" in data.children else None
    if IS_LEGACY and isinstance(data, az.InferenceData):
        return getattr(data, "posterior", None)
    return None


def ess(values: np.ndarray, method: str) -> np.ndarray:
    """Effective sample size of each quantity in (chain, draw, quantity)."""
    data = xr.Dataset({"values": (("chain", "draw", "quantity"), values)})
    return np.asarray(az.ess(data, method=method)["values"])


def bfmi(energy: np.ndarray) -> np.ndarray:
    """E-BFMI of each chain from energies of shape (chain, draw)."""
    return np.asarray(az.bfmi(energy))
