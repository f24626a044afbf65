"""PhysioNet/CinC Challenge 2012: two days of an intensive care stay, hour by hour."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ppl_bnn.datasets.dataset import Dataset, Series, names
from ppl_bnn.datasets.files import check_size, corrupt, find, read_npz
from ppl_bnn.datasets.images import Folder

ORIGIN = (
    "https://physionet.org/content/challenge-2012/1.0.0/ (set-a, set-b and set-c unpacked, and "
    "Outcomes-a.txt, -b and -c beside them)"
)
SETS = ("a", "b", "c")
PER_SET = 4000
HOURS = 48
VARIABLES = tuple(
    """ALP ALT AST Albumin BUN Bilirubin Cholesterol Creatinine DiasABP FiO2 GCS Glucose HCO3 HCT HR
    K Lactate MAP MechVent Mg NIDiasABP NIMAP NISysABP Na PaCO2 PaO2 Platelets RespRate SaO2 SysABP
    Temp TroponinI TroponinT Urine WBC Weight pH""".split()
)
STATIC = ("Age", "Gender", "Height", "ICUType", "Weight")
ICU_TYPES = (1, 2, 3, 4)
MISSING = -1


class _Stays(NamedTuple):
    """Raw numbers, NaN where nothing was measured: (stay, hour, variable), (stay, static)."""

    x: np.ndarray
    static: np.ndarray
    died: np.ndarray


def physionet2012(folder: Folder = None, *, check: bool = True) -> Dataset:
    """12,000 stays in intensive care: 37 variables over 48 hours; class 1 died in hospital.

    Set a trains, set b validates, set c tests. Hourly means are standardised by the mean and
    deviation of what was measured in set a; what was not measured is 0, the mean.

    Parameters
    ----------
    folder
        Holds ``set-a/*.txt`` and ``Outcomes-a.txt`` (b and c alike) as published, or
        ``clinical/physionet2012_hourly.npz``; by default the folder that the environment variable
        PPL_BNN_DATA names. In the texts -1 stands for a missing value, and an entry
        at 48:00 belongs to the last hour.
    check
        Refuse sets that do not have 4,000 stays each.

    Returns
    -------
    Dataset
        With `x_train` a `Series`: ``x, mask, observed, static = data.x_train``, where `mask` is
        true (every stay has 48 hours), and `static` is age, gender, height and weight,
        standardised, and four columns for the kind of unit, 0 or 1. Pass ``x, mask, observed`` to
        a sequence network.

    Raises
    ------
    FileNotFoundError
        If the files are not there; says where they come from.
    ValueError
        If they are not what was published.

    References
    ----------
    I. Silva et al. (2012), *Predicting in-hospital mortality of ICU patients: the
    PhysioNet/Computing in Cardiology Challenge 2012*.
    """
    candidates = ["Outcomes-a.txt", "clinical/physionet2012_hourly.npz"]
    path = find("PhysioNet 2012", candidates, ORIGIN, folder)
    if path.suffix == ".npz":
        stays = _read_npz(path)
    else:
        stays = {name: _read_texts(path.parent, name, check) for name in SETS}
    for name, values in stays.items():
        if not np.isin(values.died, (0, 1)).all():
            raise corrupt(path, f"set {name} has in-hospital deaths that are neither 0 nor 1")
        if check:
            check_size(path, len(values.died), PER_SET, f"stays in set {name}")
    prepare = _Preparation(stays["a"])
    series = {name: prepare(values) for name, values in stays.items()}
    died = {name: values.died.astype(np.int32) for name, values in stays.items()}
    return Dataset(
        series["a"],
        died["a"],
        series["c"],
        died["c"],
        series["b"],
        died["b"],
        name="PhysioNet 2012",
        origin=str(path),
        features=VARIABLES,
        targets=("in-hospital death",),
        classes=("survived", "died"),
    )


class _Preparation:
    """Scales of what was measured in the training stays."""

    def __init__(self, train: _Stays):
        self.x = _scale(train.x.reshape(-1, train.x.shape[-1]))
        self.static = _scale(_numbers(train.static))

    def __call__(self, stays: _Stays) -> Series:
        observed = np.isfinite(stays.x)
        mean, std = self.x
        x = np.where(observed, (stays.x - mean) / std, 0).astype(np.float32)
        numbers = _numbers(stays.static)
        mean, std = self.static
        numbers = np.where(np.isfinite(numbers), (numbers - mean) / std, 0)
        icu = stays.static[:, STATIC.index("ICUType"), None] == np.array(ICU_TYPES)
        static = np.column_stack([numbers, icu]).astype(np.float32)
        return Series(x, np.ones(x.shape[:2], bool), observed, static)


def _numbers(static: np.ndarray) -> np.ndarray:
    return np.delete(static, STATIC.index("ICUType"), axis=1)


def _scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of each column over its entries; 0 and 1 where there is no spread."""
    values = values.astype(float)
    found = np.isfinite(values)
    count = np.maximum(found.sum(axis=0), 1)
    mean = np.where(found, values, 0).sum(axis=0) / count
    std = np.sqrt((np.where(found, values - mean, 0) ** 2).sum(axis=0) / count)
    return mean, np.where(std > 1e-12 * np.maximum(np.abs(mean), 1), std, 1)


def _read_npz(path: Path) -> dict[str, _Stays]:
    arrays = read_npz(
        path, ["x", "static", "outcome", "set_index", "variables", "static_names", "outcome_names"]
    )
    x = arrays["x"][:, :, _columns(path, arrays["variables"], VARIABLES)]
    static = arrays["static"][:, _columns(path, arrays["static_names"], STATIC)]
    (death,) = _columns(path, arrays["outcome_names"], ["In-hospital_death"])
    result = {}
    for index, name in enumerate(SETS):
        rows = arrays["set_index"] == index
        result[name] = _Stays(x[rows], static[rows], arrays["outcome"][rows, death])
    return result


def _columns(path: Path, found: np.ndarray, wanted: Sequence[str]) -> list[int]:
    known = [name.lower() for name in names(found)]
    if missing := [name for name in wanted if name.lower() not in known]:
        raise corrupt(path, f"it has no column {', '.join(missing)}, only {', '.join(known)}")
    return [known.index(name.lower()) for name in wanted]


def _read_texts(folder: Path, name: str, check: bool) -> _Stays:
    outcomes = folder / f"Outcomes-{name}.txt"
    for path in (outcomes, folder / f"set-{name}"):
        if not path.exists():
            raise FileNotFoundError(f"PhysioNet 2012 needs {path}. It comes from {ORIGIN}.")
    try:
        with outcomes.open(newline="") as stream:
            deaths = {
                row["RecordID"]: int(row["In-hospital_death"]) for row in csv.DictReader(stream)
            }
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(
            outcomes, f"no RecordID and In-hospital_death in each row ({error})"
        ) from error
    x = np.full((len(deaths), HOURS, len(VARIABLES)), np.nan, np.float32)
    static = np.full((len(deaths), len(STATIC)), np.nan, np.float32)
    for row, record in enumerate(deaths):
        path = folder / f"set-{name}" / f"{record}.txt"
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing, though {outcomes} has its outcome")
        x[row], static[row] = _read_stay(path)
    return _Stays(x, static, np.array(list(deaths.values())))


def _read_stay(path: Path) -> tuple[np.ndarray, np.ndarray]:
    lines = path.read_text().split()
    if not lines or lines[0] != "Time,Parameter,Value":
        raise corrupt(path, "its first line is not `Time,Parameter,Value`")
    total, count = np.zeros((2, HOURS, len(VARIABLES)))
    static = np.full(len(STATIC), np.nan)
    for number, line in enumerate(lines[1:], start=2):
        try:
            time, parameter, text = line.split(",")
            hour, value = int(time.split(":")[0]), float(text)
        except ValueError as error:
            raise corrupt(
                path, f"line {number} is {line!r}, not a time, a name, a value"
            ) from error
        if value == MISSING:
            continue
        if time == "00:00" and parameter in STATIC and np.isnan(static[STATIC.index(parameter)]):
            static[STATIC.index(parameter)] = value
        if parameter in VARIABLES:  # the weight at the start is both
            total[min(hour, HOURS - 1), VARIABLES.index(parameter)] += value
            count[min(hour, HOURS - 1), VARIABLES.index(parameter)] += 1
    with np.errstate(invalid="ignore"):
        return total / count, static
