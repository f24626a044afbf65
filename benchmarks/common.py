"""What the benchmarks share: data, versions, the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import jax
import numpy as np

from ppl_bnn import datasets

BESIDE_THE_REPO = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA = Path(os.environ.get("PPL_BNN_DATA", BESIDE_THE_REPO))


def load_uci(name: str, split: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x_train, y_train, x_test, y_test in float32, standardised by the training rows."""
    try:
        original = datasets.uci(name, split, DATA)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error
    data, _ = datasets.standardize(original.in_source_order())
    x_train, y_train, x_test, y_test = (
        np.asarray(values, np.float32)
        for values in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    return x_train, y_train, x_test, y_test


def load_or_make_rows(name: str, num_rows: int, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """The training rows of a UCI set if it is there and has that shape, otherwise made-up ones."""
    if (DATA / "uci" / f"{name}.npz").exists():
        x, y, _, _ = load_uci(name)
        if x.shape == (num_rows, num_features):
            return x, y
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, num_features)).astype(np.float32)
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.3 * rng.normal(size=num_rows)
    return x, y.astype(np.float32)


def print_versions(*packages: str) -> None:
    names = {package: package.replace("_", "-") for package in packages}
    versions = [f"{p} {importlib.metadata.version(name)}" for p, name in names.items()]
    print(f"Python {platform.python_version()}, " + ", ".join(versions))


def describe_machine() -> None:
    load = os.getloadavg()[0]
    print(f"{jax.devices()[0].device_kind}, {os.cpu_count()} CPUs, load {load:.2f} at the start")
