"""The examples run in a reduced setting and show what they claim."""

import importlib
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """``example(name)``: an example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def test_tables_are_standardised_by_their_training_rows(example):
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 5, (40, 2)), rng.normal(-7, 4, 40)
    x[:, 1] = 2.5
    table = example("real_data").standardize(x[:30], x[30:], y[:30], y[30:])
    np.testing.assert_allclose(table.x_train.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(table.x_train.std(axis=0), [1, 0], atol=1e-12)
    np.testing.assert_allclose(table.x_test[:, 0], (x[30:, 0] - x[:30, 0].mean()) / x[:30, 0].std())
    np.testing.assert_allclose(table.in_units(table.y_test), y[30:])
    assert table.log_density_in_units(0.0) == pytest.approx(-np.log(y[:30].std()))


def test_a_missing_table_is_explained(example, monkeypatch, tmp_path):
    monkeypatch.setenv("PPL_BNN_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"PPL_BNN_DATA to the folder that holds uci/yacht\.npz"):
        example("real_data").load("yacht")


@pytest.mark.slow
def test_demo(example, capsys, tmp_path):
    sizes = ["--num-warmup", "50", "--num-samples", "50", "--chains", "2"]
    example("demo").main([*sizes, "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    row = {
        line[:40].strip(): line[40:].strip().rstrip("%")
        for line in printed.splitlines()
        if line[40:].strip()
    }
    # 71.7 is the RMSE of a constant, the mean of the training rows
    assert 50 < float(row["Test RMSE"]) < 62
    assert -5.7 < float(row["Test log predictive density (mixture)"]) < -5.3
    assert 75 < float(row["Coverage of 90 % predictive intervals"]) < 99
    assert 0.6 < float(row["Mean acceptance probability"]) < 0.98
    assert "89 test predictions" in printed and "601 weights" in printed
    assert "Rank-normalised split R-hat (ArviZ)" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"diabetes.png", "diabetes.nc"}


@pytest.mark.slow
def test_weights_disagree_where_functions_agree(example, uci):
    uci("concrete")  # skips where the set is missing
    functions, weights = example("weights_vs_functions").main(["--num-samples", "100"])
    assert np.median(functions) < 1.03
    assert functions.max() < 1.15
    assert weights.max() > 1.2
    assert weights.max() - 1 > 3 * (functions.max() - 1)


@pytest.mark.slow
def test_large_steps_without_a_metropolis_test(example):
    sizes = ["--num-samples", "20", "--num-warmup", "80", "--multiples", "1", "30", "50"]
    rows = example("step_size_ablation").main(["--data", "diabetes", *sizes])
    acceptance = [row["acceptance"] for row in rows]
    assert acceptance[0] > 0.99
    assert acceptance == sorted(acceptance, reverse=True)
    assert acceptance[-1] < 0.05
    assert rows[0]["divergent"] == 0 and rows[-1]["divergent"] > 0.5
    assert rows[0]["log_likelihood"] > max(row["log_likelihood"] for row in rows[1:])


@pytest.mark.slow
def test_prior_check(example, tmp_path):
    sizes = ["--num-draws", "20", "--num-points", "50", "--out", str(tmp_path)]
    checks = example("prior_check").main(sizes)
    assert "too wide" in checks["dense", "normal(1)"].verdict
    assert "Saturated" in checks["convolutional", "normal(1)"].verdict
    assert checks["dense", "fan_in_normal(1)"].verdict == "Nothing stands out."
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"dense.png", "convolutional.png", "recurrent.png"}


@pytest.mark.slow
def test_bias_of_stochastic_gradients_is_that_of_theory(example, tmp_path):
    sizes = ["--steps", "0.4", "0.2", "--num-samples", "100", "--chains", "16"]
    rows = example("step_size_bias").main([*sizes, "--out", str(tmp_path)])
    known = [row for row in rows if row["theory"] is not None]
    assert len(known) == 4 and len(rows) == 6
    for row in known:
        assert row["error"] < 0.06
        assert abs(row["ratio"] - row["theory"]) < 4 * row["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-size-bias.png"]
