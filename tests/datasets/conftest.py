"""The folder of real data, and raw arrays of its files."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

BESIDE_THE_REPO = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def folder():
    """The folder of real data; skips the test where there is none."""
    path = Path(os.environ.get("PPL_BNN_DATA", BESIDE_THE_REPO))
    if not path.is_dir():
        pytest.skip(f"no {path}: set PPL_BNN_DATA to the folder of data")
    return path


@pytest.fixture(scope="session")
def raw(folder):
    """``raw(file)``: all arrays of one .npz file of the folder of real data."""

    @cache
    def load(file):
        if not (folder / file).exists():
            pytest.skip(f"no {folder / file}")
        with np.load(folder / file) as arrays:
            return {name: arrays[name] for name in arrays.files}

    return load
