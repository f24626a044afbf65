"""Real tables for the examples: split into train and test, and standardised."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

BESIDE_THE_REPO = Path(__file__).resolve().parents[2] / "shared" / "data"


class Table(NamedTuple):
    """Features and targets in units of their standard deviation over the training rows."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_mean: float  # of the training targets, in original units
    y_std: float

    def in_units(self, y):
        """Standardised targets in original units."""
        return self.y_mean + self.y_std * y

    def log_density_in_units(self, log_density):
        """Log density of standardised targets as that of targets in original units."""
        return log_density - np.log(self.y_std)


def load(name="diabetes"):
    """scikit-learn's diabetes, or split 0 of a UCI set from the folder PPL_BNN_DATA."""
    if name == "diabetes":
        x, y = load_diabetes(return_X_y=True)
        return standardize(*train_test_split(x, y, test_size=0.2, random_state=0))
    folder = Path(os.environ.get("PPL_BNN_DATA", BESIDE_THE_REPO)) / "uci"
    path = folder / f"{name}.npz"
    if not path.exists():
        found = sorted(p.stem for p in folder.glob("*.npz") if p.stem != "splits")
        raise SystemExit(
            f"There is no file {path}. Set the environment variable PPL_BNN_DATA to the folder "
            f"that holds uci/{name}.npz and uci/splits.npz, or take --data diabetes, which needs "
            f"no file. Sets found: {', '.join(found) or 'none'}."
        )
    with np.load(path) as arrays, np.load(path.with_name("splits.npz")) as splits:
        x, y = arrays["x"], arrays["y"]
        if name not in splits:
            raise SystemExit(f"{path.with_name('splits.npz')} has no split of {name!r}.")
        is_test = np.zeros(len(y), bool)
        is_test[splits[name][0].astype(int)] = True
    return standardize(x[~is_test], x[is_test], y[~is_test], y[is_test])


def standardize(x_train, x_test, y_train, y_test):
    """Scale by the training rows alone; a constant column becomes zero."""
    scaler = StandardScaler().fit(x_train)
    mean, std = float(y_train.mean()), float(y_train.std())
    return Table(
        scaler.transform(x_train),
        (y_train - mean) / std,
        scaler.transform(x_test),
        (y_test - mean) / std,
        mean,
        std,
    )
