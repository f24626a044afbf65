"""What all tests share: eight CPU devices, run-time type checks, the real data sets."""

import os
from importlib import metadata
from pathlib import Path

# Read when JAX makes its devices, so they come before anything that imports it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jaxtyping
import numpy as np
import pytest

# An int is a float, as type checkers see it.
jaxtyping.install_import_hook(
    "ppl_bnn", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)

BESIDE_THE_REPO = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA = Path(os.environ.get("PPL_BNN_DATA", BESIDE_THE_REPO))


def pytest_configure(config):
    """Tests compile more than they compute, so let XLA optimise less.

    The fast tests compile far more, and nothing is optimised; of the others some compute for long,
    and what is left out there costs them no speed. The demo and the documents run as users run.
    """
    level = 0 if config.option.markexpr == "not slow" else 1
    os.environ["XLA_FLAGS"] += f" --xla_backend_optimization_level={level}"
    if metadata.version("jaxlib").startswith("0.10."):  # later ones do not know the flag
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"


@pytest.fixture(scope="session")
def uci():
    """``uci(name, split=0)``: x_train, y_train, x_test, y_test of a UCI set's standard split."""

    from ppl_bnn import datasets  # after the import hook above

    def load(name, split=0):
        try:
            data = datasets.uci(name, split, DATA).in_source_order()
        except FileNotFoundError as error:
            pytest.skip(str(error))
        return data.x_train, data.y_train, data.x_test, data.y_test

    return load


@pytest.fixture(scope="session")
def tabular():
    """``tabular(name)``: x, standardised, and class labels of a table."""

    def load(name):
        path = DATA / "tabular" / "classification.npz"
        if not path.exists():
            pytest.skip(f"{path} is missing; set PPL_BNN_DATA to the folder of the data sets")
        with np.load(path) as arrays:
            x, y = arrays[f"{name}_x"], arrays[f"{name}_y"]
        return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y.astype(np.int32)

    return load


@pytest.fixture
def as_users_run(monkeypatch):
    """No run-time type checks, so that bad input reaches the package's own errors."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
