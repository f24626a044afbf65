"""Real tables for the examples: split into train and test, and standardised."""

import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ppl_bnn import datasets

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
        return _table(datasets.scikit_learn("diabetes"))
    folder = os.environ.get("PPL_BNN_DATA", BESIDE_THE_REPO)
    try:
        return _table(datasets.uci(name, folder=folder).in_source_order())
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(
            f"Set the environment variable PPL_BNN_DATA to the folder that holds uci/{name}.npz, "
            f"or take --data diabetes, which needs no file: {error}"
        ) from error


def standardize(x_train, x_test, y_train, y_test):
    """Scale by the training rows alone; a constant column becomes zero."""
    return _table(datasets.Dataset(x_train, y_train, x_test, y_test))


def _table(data):
    with warnings.catch_warnings(action="ignore"):  # of constant columns, which naval has
        data, units = datasets.standardize(data)
    arrays = data.x_train, data.y_train, data.x_test, data.y_test
    return Table(*arrays, float(units.y_mean), float(units.y_std))
