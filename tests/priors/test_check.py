"""Prior predictive checks: numbers against hand computation, verdicts, bad input."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import ppl_bnn
from ppl_bnn import models, priors

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 0.5], np.float32)
PRIOR = dist.Normal()


def linear(scale=1.0, noise=0.5, level=0.0):
    """A linear model, of which all moments are known."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, scale).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(level + x @ w, noise), obs=y)

    return model


def test_numbers_against_closed_forms():
    check = priors.check(linear(2.0, 0.3), X, Y, num_draws=4000, batch_size=4000)
    assert check.kind == "real" and check.functions.shape == (4000, 40)
    # f(x) = x . w: 2 |x| over draws; within a draw w' cov(x) w, of which the mean is 4 tr cov(x)
    expected = 2 * np.sqrt((X**2).sum(axis=1).mean())
    np.testing.assert_allclose(check.across_draws, expected, rtol=5 / np.sqrt(2 * 4000))
    np.testing.assert_allclose(check.width, expected, rtol=0.06)
    expected = 2 * np.sqrt(np.trace(np.cov(X.T, bias=True)))
    np.testing.assert_allclose(check.across_x, expected, rtol=5 / np.sqrt(2 * 4000))
    np.testing.assert_allclose(check.noise, 0.3, rtol=1e-5)
    np.testing.assert_allclose(check.unit, Y.std(), rtol=1e-5)
    assert check.verdict == "Nothing stands out." and check.advice == []
    assert "A new value" in str(check) and "times that of y" in str(check)


def test_chunks_are_of_the_same_draws():
    model = linear()
    whole = priors.check(model, X, num_draws=7)
    parts = priors.check(model, X, num_draws=7, batch_size=3, points_batch_size=9)
    np.testing.assert_allclose(parts.functions, whole.functions, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts.variances, whole.variances, rtol=1e-5)
    transformed = priors.check(ppl_bnn.full_batch(model, chunk_size=8), X, num_draws=7)
    np.testing.assert_array_equal(transformed.functions, whole.functions)
    other = priors.check(model, X, num_draws=7, rng_key=jax.random.key(1))
    assert not np.allclose(other.functions, whole.functions)


@pytest.mark.parametrize(
    ("model", "y", "words"),
    [
        (linear(), Y, "Nothing stands out"),
        (linear(30.0), Y, "scale is too wide: from draw to draw functions differ by"),
        (linear(0.01), Y, "Nearly constant: within a draw functions vary by only 0.00"),
        (linear(noise=20.0), Y, "noise is too wide: "),
        (linear(level=100.0), Y, "Far off: the mean of y"),
        (linear(30.0), 30 * Y, "Nothing stands out"),
        (linear(30.0), None, "scale is too wide"),
    ],
)
def test_verdicts_on_numbers(model, y, words):
    check = priors.check(model, X, y)
    assert words in check.verdict
    assert bool(check.advice) == ("Nothing" not in words)


def test_data_that_are_not_standardised_are_named_first():
    check = priors.check(linear(noise=1.0), X, 1000 + 50 * Y)
    assert check.verdict.startswith("Far off") and "datasets.standardize" in check.advice[0]


def test_heavy_tails():
    def model(x, y=None):
        scale = numpyro.sample("scale", dist.Pareto(1.0, 0.2))
        w = numpyro.sample("w", dist.Normal(0, scale).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    assert "Heavy tails: a few draws" in priors.check(model, X).verdict


def test_a_label_that_no_row_has():
    labels = np.repeat([0, 2], 20)
    check = priors.check(classifier(priors.fan_in_normal()), X, labels)
    assert check.verdict.startswith("No row of y has label 1 of 0 to 2.")


def classifier(prior, hidden=(50, 50), classes=3):
    return models.classification(models.MLP(3, hidden, classes), prior)


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (priors.fan_in_normal(), "Nothing stands out"),
        (priors.normal(3.0), "Saturated: a class has a probability above 0.99 in "),
        (priors.normal(0.01), "Nearly constant: class probabilities are almost equal"),
        (priors.fan_in_normal(0.2, bias=2.0), "One class for all"),
    ],
)
def test_verdicts_on_classes(prior, words):
    check = priors.check(classifier(prior), X)
    assert words in check.verdict, str(check)
    assert "Class probabilities" in str(check)


def test_numbers_of_classes_by_hand():
    def model(x, y=None):
        level = numpyro.sample("level", dist.Uniform(-8, 8))
        logits = jnp.stack([level + 0 * x[:, 0], 0 * x[:, 0]], axis=1)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Categorical(logits=logits), obs=y)

    check = priors.check(model, X, num_draws=2000, batch_size=2000)
    # |level| > log 99
    expected = 1 - np.log(99) / 8
    assert abs(check.saturation - expected) < 4 * np.sqrt(expected * (1 - expected) / 2000)
    assert check.one_class == 1.0
    np.testing.assert_allclose(check.across_x, 0, atol=1e-6)
    np.testing.assert_allclose(check.across_draws, 8 / np.sqrt(3) / 2, rtol=0.06)
    p = 1 / (1 + np.exp(-np.linspace(-8, 8, 10_001)))
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean() / np.log(2)
    assert check.entropy == pytest.approx(entropy, abs=0.03)


def test_counts():
    def model(scale):
        def run(x, y=None):
            w = numpyro.sample("w", dist.Normal(0, scale).expand([3]).to_event(1))
            with numpyro.plate("data", x.shape[0]):
                numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)

        return run

    counts = RNG.poisson(1.0, 40)
    check = priors.check(model(0.5), X, counts, num_draws=2000, batch_size=2000)
    assert check.kind == "positive" and check.verdict == "Nothing stands out."
    expected = 0.5 * np.sqrt((X**2).sum(axis=1).mean())
    np.testing.assert_allclose(check.across_draws, expected, rtol=5 / np.sqrt(2 * 2000))
    assert "expected value goes up or down by a factor" in priors.check(model(5.0), X).verdict
    assert "Nearly constant" in priors.check(model(0.01), X).verdict
    assert "Far off" in priors.check(model(0.1), X, counts + 1000).verdict
    # means of which only the logarithm is finite, as log(exp(.)) gives if a compiler simplifies it
    beyond = dataclasses.replace(check, functions=check.functions * 10_000)
    assert "factor of inf" in str(beyond)
    assert "Expected values: 90 % between" in str(check)


def test_functions_that_overflow():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 100.0).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.exp(x @ w), 1.0), obs=y)

    check = priors.check(model, X, Y)
    assert 50 < check.num_nonfinite <= 100
    assert f"Not usable: functions are NaN or infinite in {check.num_nonfinite}" in str(check)
    assert "lighter tails" in check.advice[0]


def test_several_outputs_are_judged_by_the_worst():
    prior = {"layers.0.bias": priors.normal(1.0), "*": dist.Normal(0, jnp.array([1.0, 0.001]))}
    model = models.regression(models.MLP(3, (), 2), prior)
    check = priors.check(model, X, np.stack([Y, Y], axis=1))
    assert check.functions.shape == (100, 40, 2) and check.across_draws.shape == (2,)
    assert "Nearly constant" in check.verdict
    assert " to " in str(check)


def test_student_t_noise_without_a_mean():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.StudentT(1.0, x @ w, 0.1), obs=y)

    check = priors.check(model, X, Y)
    assert not check.num_nonfinite
    assert "Nothing stands out" in check.verdict, str(check)


def test_models_of_several_inputs_and_per_row_latents():
    def model(x, z, y=None, *, extra=1.0):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            shift = numpyro.sample("shift", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(extra * w * x + z + shift, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"several sites .*\['shift', 'y'\]; choose .*`site=`"):
        priors.check(model, (X[:, 0], X[:, 1]))
    check = priors.check(
        model,
        (X[:, 0], X[:, 1]),
        site="y",
        num_draws=2000,
        batch_size=2000,
        model_kwargs={"extra": 2.0},
    )
    expected = np.sqrt(1 + 4 * (X[:, 0] ** 2).mean())
    np.testing.assert_allclose(check.across_draws, expected, rtol=5 / np.sqrt(2 * 2000))


def test_bad_input():
    model = linear()
    with pytest.raises(ValueError, match=r"`num_draws` must be at least 2.*got 1"):
        priors.check(model, X, num_draws=1)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="`x` holds NaN"):
        priors.check(model, bad)
    with pytest.raises(ValueError, match="`y` holds NaN"):
        priors.check(model, X, bad[:, 1])
    with pytest.raises(ValueError, match=r"`y` has shape \(39,\), .* shape \(40,\)"):
        priors.check(model, X, Y[1:])
    with pytest.raises(ValueError, match=r"`site` 'w' is no sample site .*\['y'\]"):
        priors.check(model, X, site="w")
    with pytest.raises(ValueError, match=r"number of rows from `x`. The model's own error"):
        priors.check(lambda x, y=None: model(x.reshape(40, 3), y), X)
    with pytest.raises(ValueError, match=r"^prior has keys that match no parameter"):
        priors.check(models.regression(models.MLP(3, (), 1), {"no": PRIOR, "*": PRIOR}), X)
    labels = classifier(priors.normal(), hidden=())
    with pytest.raises(ValueError, match=r"`y` has dtype float32, but CategoricalLogits needs int"):
        priors.check(labels, X, Y)
    with pytest.raises(ValueError, match=r"`y` has 20 entries outside .* integers from 0 to 2: 3"):
        priors.check(labels, X, np.repeat([0, 3], 20))

    def no_likelihood(x):
        numpyro.sample("w", dist.Normal(0, 1))

    with pytest.raises(ValueError, match=r"no observed site: .*\['w'\].*obs=y"):
        priors.check(no_likelihood, X)


@pytest.mark.parametrize(
    ("model", "x", "y"),
    [
        (linear(), X, Y),
        (linear(), X, None),
        (classifier(priors.fan_in_normal(), hidden=()), X, None),
        (models.regression(models.MLP(1, (), 1), priors.normal()), X[:, :1], Y),
        (models.regression(models.MLP(3, (), 2), priors.normal()), X, None),
    ],
    ids=["ranges", "without-y", "classes", "lines", "outputs"],
)
def test_plot(model, x, y, tmp_path):
    figure = priors.check(model, x, y, num_draws=30).plot(num_draws=5)
    assert len(figure.axes) == 2
    figure.savefig(tmp_path / "check.png")
    assert (tmp_path / "check.png").stat().st_size > 1000


def test_plot_without_matplotlib(monkeypatch):
    check = priors.check(linear(), X, num_draws=3)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="plotting needs matplotlib: python -m pip install"):
        check.plot()
