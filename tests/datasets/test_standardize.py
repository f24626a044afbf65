"""Standardisation by the training rows, and the exact way back."""

import dataclasses

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import ppl_bnn
from ppl_bnn import datasets
from ppl_bnn.datasets import Dataset
from ppl_bnn.predict import RegressionPrediction


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 5, (40, 3)), rng.normal(-7, 4, 40)
    return Dataset(x[:25], y[:25], x[30:], y[30:], x[25:30], y[25:30])


def test_every_part_is_scaled_by_the_training_rows(data):
    scaled, units = datasets.standardize(data)
    np.testing.assert_allclose(scaled.x_train.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(scaled.x_train.std(axis=0), 1)
    mean, std = data.x_train.mean(axis=0), data.x_train.std(axis=0)
    for part in ("validation", "test"):
        x = getattr(data, f"x_{part}")
        np.testing.assert_allclose(getattr(scaled, f"x_{part}"), (x - mean) / std)
        np.testing.assert_array_equal(units.scale_x(x), getattr(scaled, f"x_{part}"))
        y = getattr(data, f"y_{part}")
        np.testing.assert_allclose(units.location(getattr(scaled, f"y_{part}")), y, rtol=1e-14)
    assert units.y_std == np.std(data.y_train)


def test_epsilon_is_the_papers(data):
    _, units = datasets.standardize(data, epsilon=1e-6)
    np.testing.assert_allclose(units.x_std - data.x_train.std(axis=0), 1e-6, rtol=1e-6)
    assert units.y_std - data.y_train.std() == pytest.approx(1e-6)
    with pytest.raises(ValueError, match="`epsilon`"):
        datasets.standardize(data, epsilon=-1.0)


def test_constant_columns_become_zero_with_a_warning(data):
    x_train, x_test = data.x_train.copy(), data.x_test.copy()
    x_train[:, 1] = 0.1  # whose mean over 25 rows is not 0.1 in floating point
    x_test[:, 1] = 7.0
    constant = Dataset(x_train, data.y_train, x_test, data.y_test, features=("a", "b", "c"))
    for epsilon in (0.0, 1e-6):
        with pytest.warns(UserWarning, match=r"set to 0 everywhere: b$"):
            scaled, _ = datasets.standardize(constant, epsilon=epsilon)
        assert not scaled.x_train[:, 1].any() and not scaled.x_test[:, 1].any()


def test_constant_targets_are_refused(data):
    flat = Dataset(data.x_train, np.full(25, 0.1), data.x_test, data.y_test)
    with pytest.raises(ValueError, match="`y_train` is constant"):
        datasets.standardize(flat)


def test_labels_are_left_alone(data):
    y = np.arange(25) % 2
    labelled = Dataset(data.x_train, y, data.x_test, y[:10], classes=("a", "b"))
    scaled, units = datasets.standardize(labelled)
    np.testing.assert_array_equal(scaled.y_train, y)
    assert scaled.y_train.dtype.kind == "i" and units.y_std == 1
    np.testing.assert_allclose(scaled.x_train.std(axis=0), 1)
    np.testing.assert_array_equal(
        datasets.standardize(data, targets=False).data.y_train, data.y_train
    )


def test_what_is_no_table_of_numbers(data):
    images = Dataset(np.zeros((4, 2, 2)), np.arange(4.0), np.zeros((1, 2, 2)), np.zeros(1))
    with pytest.raises(ValueError, match=r"`x_train` must be a table.*\(4, 2, 2\)"):
        datasets.standardize(images)
    x_test = data.x_test.copy()
    x_test[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"`x_test` has values that are NaN.*\(2, 1\)"):
        datasets.standardize(Dataset(data.x_train, data.y_train, x_test, data.y_test))


def test_scores_of_several_outputs():
    rng = np.random.default_rng(1)
    y = rng.normal([1.0, -50.0], [0.1, 30.0], (60, 2))
    x = rng.normal(size=(60, 1))
    original = Dataset(x[:40], y[:40], x[40:], y[40:])
    scaled, units = datasets.standardize(original)
    mean = scaled.y_test + rng.normal(size=(20, 2))
    errors = units.location(mean) - original.y_test
    np.testing.assert_allclose(
        units.rmse(mean, scaled.y_test), np.sqrt(np.mean(errors**2, axis=0)), rtol=1e-12
    )
    in_units = norm(units.location(mean), units.deviation(0.5)).logpdf(original.y_test)
    in_std = norm(mean, 0.5).logpdf(scaled.y_test).sum(axis=1)
    np.testing.assert_allclose(units.log_density(in_std), in_units.sum(axis=1), rtol=1e-10)


def test_moments_quantiles_and_draws_are_restored(data, as_users_run):
    _, units = datasets.standardize(data)
    rng = np.random.default_rng(2)
    scaled = RegressionPrediction(
        draws=rng.normal(size=(2, 6, 9)),
        _replay=None,
        mean=rng.normal(size=9),
        epistemic_variance=rng.uniform(size=9),
        aleatoric_variance=rng.uniform(size=9),
        quantiles=rng.normal(size=(3, 9)),
    )
    restored = units.restore(scaled)
    mean, std = data.y_train.mean(), data.y_train.std()
    for name in ("mean", "quantiles", "draws"):
        expected = mean + std * getattr(scaled, name)
        np.testing.assert_allclose(getattr(restored, name), expected, rtol=1e-12)
    for name in ("epistemic_variance", "aleatoric_variance", "variance"):
        expected = std**2 * getattr(scaled, name)
        np.testing.assert_allclose(getattr(restored, name), expected, rtol=1e-12)
    without = dataclasses.replace(scaled, draws=None, quantiles=None)
    assert units.restore(without).draws is None and units.restore(without).quantiles is None


def test_log_density_of_a_prediction_is_restored():
    """A mixture that is known: draws of two means, with known noise, against NumPyro."""
    rng = np.random.default_rng(2)
    y = rng.normal([20.0, -3.0], [5.0, 0.1], (50, 2))
    x = rng.normal(size=(50, 1))
    original = Dataset(x[:40], y[:40], x[40:], y[40:])
    data, units = datasets.standardize(original)

    def model(x, y=None):
        level = numpyro.sample("level", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", len(x)):
            mean = np.zeros((len(x), 2)) + level
            numpyro.sample("y", dist.Normal(mean, 0.7).to_event(1), obs=y)

    levels = rng.normal(size=(6, 2)).astype(np.float32)
    prediction = ppl_bnn.predict({"level": levels}, data.x_test, model=model)
    restored = units.restore(prediction)
    means, std = units.location(levels), units.deviation(0.7)
    np.testing.assert_allclose(restored.mean[0], means.mean(axis=0), rtol=1e-6)
    densities = norm(means[:, None], std).logpdf(original.y_test).sum(axis=-1)
    expected = logsumexp(densities, axis=0) - np.log(6)
    np.testing.assert_allclose(restored.log_prob(original.y_test), expected, rtol=1e-4)


def test_class_probabilities_have_no_units(data, as_users_run):
    _, units = datasets.standardize(data)
    with pytest.raises(ValueError, match="must be one of regression"):
        units.restore(np.zeros(3))


def test_one_target_in_a_column_has_one_error(as_users_run):
    x, y = np.arange(16.0).reshape(8, 2), np.arange(8.0)
    column = datasets.standardize(Dataset(x, y[:, None], x, y[:, None])).units
    row = datasets.standardize(Dataset(x, y, x, y)).units
    assert column.rmse(np.zeros(8), y) == pytest.approx(row.rmse(np.zeros(8), y))
    two = datasets.standardize(Dataset(x, x, x, x)).units
    with pytest.raises(ValueError, match=r"`mean` has shape \(8,\), expected \(row, 2\)"):
        two.rmse(y, y)
    with pytest.raises(ValueError, match=r"`x` has shape \(3, 1\), expected \(row, 2\)"):
        row.scale_x(np.zeros((3, 1)))
    with pytest.raises(ValueError, match="`x_test` has shape"):
        datasets.standardize(Dataset(x, y, x[:, :1], y))


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_columns_without_a_deviation_in_floating_point(factor, as_users_run):
    x, y = np.arange(16.0).reshape(8, 2), np.arange(8.0)
    with pytest.raises(ValueError, match="`y_train` has a column, 0, whose numbers are too"):
        datasets.standardize(Dataset(x, y * factor, x, y))
    with pytest.raises(ValueError, match="`x_train` has a column, 1, whose numbers are too"):
        datasets.standardize(Dataset(x * [1, factor], y, x, y))
