"""Real images, texts and clinical series for the networks, prepared as the papers prepare them."""

import os
from pathlib import Path

import numpy as np
import pytest

BESIDE_THE_REPO = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = Path(os.environ.get("PPL_BNN_DATA", BESIDE_THE_REPO))


def _arrays(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}: set PPL_BNN_DATA to the folder that holds {name}")
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(scope="session")
def cifar10():
    """``cifar10(n)``: n training images, standardised, and their labels."""

    def load(num_rows):
        arrays = _arrays("images/cifar10_small.npz")
        rows = np.random.default_rng(0).permutation(len(arrays["y_train"]))[:num_rows]
        pixels = arrays["x_train"][rows] / np.float32(255)
        x = (pixels - np.array([0.49, 0.48, 0.44], np.float32)) / np.float32(0.2)
        return x, arrays["y_train"][rows].astype(np.int32)

    return load


@pytest.fixture(scope="session")
def imdb():
    """``imdb(n)``: the last 100 token ids of n training reviews, zeros before them, and labels."""

    def load(num_rows):
        arrays = _arrays("text/imdb_tokens.npz")
        rows = np.random.default_rng(0).permutation(np.flatnonzero(arrays["is_train"]))[:num_rows]
        ids = np.zeros((num_rows, 100), np.int32)
        for text, row in zip(ids, rows, strict=True):
            words = arrays["ids"][arrays["offsets"][row] : arrays["offsets"][row + 1]][-100:]
            text[100 - len(words) :] = words
        return ids, arrays["label"][rows].astype(np.int32)

    return load


@pytest.fixture(scope="session")
def physionet():
    """``physionet(n)``: series of n stays, which values were observed, and who died."""

    def load(num_rows):
        arrays = _arrays("clinical/physionet2012_hourly.npz")
        x = arrays["x"][:num_rows]
        observed = ~np.isnan(x)
        mean, std = np.nanmean(arrays["x"], axis=(0, 1)), np.nanstd(arrays["x"], axis=(0, 1))
        std = np.where(std > 0, std, 1)  # one quantity is constant
        series = np.where(observed, (x - mean) / std, 0).astype(np.float32)
        return series, observed, arrays["outcome"][:num_rows, -1].astype(np.int32)

    return load
