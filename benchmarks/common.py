"""What the benchmarks share: data, versions, the machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


def run_cases(doc: str, packages: Sequence[str], cases: Sequence[Any], compare: Callable) -> None:
    """The command line of a script that compares contenders on several cases, in rounds."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="the small cases, three rounds")
    options = parser.parse_args()
    print_versions(*packages)
    describe_machine()
    for case in cases[:2] if options.quick else cases:
        compare(case, 3 if options.quick else options.rounds)


def time_in_turns(
    calls: dict[str, Callable[[], Any]], num_rounds: int, *, too_slow: float = np.inf
) -> dict[str, np.ndarray]:
    """Seconds of each call in each round; NaN where one took longer than `too_slow` before.

    Every second round goes backwards, so that a load that comes and goes meets all of them.
    """
    seconds = {name: np.full(num_rounds, np.nan) for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    for round_ in range(num_rounds):
        names = [name for name in calls if round_ == 0 or not np.nanmax(seconds[name]) > too_slow]
        for name in names if round_ % 2 == 0 else reversed(names):
            start = time.perf_counter()
            jax.block_until_ready(calls[name]())
            seconds[name][round_] = time.perf_counter() - start
    return seconds


def ratio(theirs: np.ndarray, ours: np.ndarray, required: float | None) -> str:
    """Theirs divided by ours, round by round, for both saw the same load: median and quartiles."""
    low, middle, high = np.quantile(theirs / ours, [0.25, 0.5, 0.75])
    below = "" if required is None or middle >= required else f"  below {required}"
    return f"{middle:.3f} ({low:.3f} to {high:.3f}){below}"
