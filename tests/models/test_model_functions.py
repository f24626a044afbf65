"""Ready model functions: a network, a prior and a likelihood."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from flax import linen, nnx
from numpyro import handlers
from numpyro.infer import HMC, MCMC, Predictive
from numpyro.infer.util import log_density

import ppl_bnn
from ppl_bnn import priors
from ppl_bnn.models.classification import binary_classification, classification
from ppl_bnn.models.mlp import MLP
from ppl_bnn.models.regression import count_regression, regression

X = jax.random.normal(jax.random.key(0), (8, 3))
Y = X[:, 0] - X[:, 1]
LABELS = jnp.arange(8) % 3
PRIOR = priors.fan_in_normal()


def trace(model, *data):
    return handlers.trace(handlers.seed(model, 0)).get_trace(*data)


def outputs_of(net, sites):
    """The network's outputs for the weights in a trace, by hand."""
    z = X
    depth = len(net.layers)
    for i in range(depth):
        kernel = sites[f"net/layers.{i}.kernel"]["value"]
        z = z @ kernel + sites[f"net/layers.{i}.bias"]["value"]
        z = jax.nn.swish(z) if i < depth - 1 else z
    return z


def test_homoscedastic():
    net = MLP(3, (4,), 1)
    sites = trace(regression(net, PRIOR), X, Y)
    assert set(sites) == {
        *(f"net/layers.{i}.{p}" for i in (0, 1) for p in ("kernel", "bias")),
        *("noise", "data", "y"),
    }
    assert sites["y"]["is_observed"] and sites["y"]["cond_indep_stack"][0].name == "data"
    assert isinstance(sites["noise"]["fn"], dist.HalfNormal)
    expected = dist.Normal(outputs_of(net, sites)[:, 0], sites["noise"]["value"]).log_prob(Y)
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(Y), expected, rtol=1e-4)


def test_heteroscedastic():
    net = MLP(3, (4,), 2)
    sites = trace(regression(net, PRIOR, "heteroscedastic", noise_floor=0.05), X, Y)
    outputs = outputs_of(net, sites)
    fn = sites["y"]["fn"]
    assert "noise" not in sites and fn.batch_shape == (8,)
    np.testing.assert_allclose(fn.loc, outputs[:, 0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(fn.scale, np.log1p(np.exp(outputs[:, 1])) + 0.05, rtol=1e-4)


def test_heteroscedastic_floor_keeps_the_density_finite():
    net = MLP(3, (), 2)
    weights = {"net/layers.0.kernel": jnp.zeros((3, 2)), "net/layers.0.bias": jnp.full(2, -200.0)}

    def log_density_with(weights, floor):
        model = regression(net, PRIOR, "heteroscedastic", noise_floor=floor)
        return log_density(model, (X, Y), {}, weights)[0]

    log_density_with = jax.jit(log_density_with, static_argnums=1)
    assert np.isfinite(log_density_with(weights, 1e-4))
    assert not np.isfinite(log_density_with(weights, 0.0))


def test_known_noise_and_noise_prior():
    net = MLP(3, (4,), 1)
    sites = trace(regression(net, PRIOR, 0.3), X, Y)
    assert "noise" not in sites
    np.testing.assert_allclose(sites["y"]["fn"].variance, np.full(8, 0.09), rtol=1e-6)
    gamma = dist.Gamma(2.0, 3.0)
    assert trace(regression(net, PRIOR, gamma), X, Y)["noise"]["fn"] is gamma


def test_several_targets():
    y = jnp.stack([Y, 10 * Y], 1)
    sites = trace(regression(MLP(3, (4,), 2), PRIOR), X, y)
    assert sites["noise"]["value"].shape == (2,)
    assert sites["y"]["fn"].batch_shape == (8,) and sites["y"]["fn"].event_shape == (2,)
    sites = trace(regression(MLP(3, (4,), 4), PRIOR, "heteroscedastic"), X, y)
    assert sites["y"]["fn"].batch_shape == (8,) and sites["y"]["fn"].event_shape == (2,)


def test_classification():
    net = MLP(3, (4,), 3)
    sites = trace(classification(net, PRIOR), X, LABELS)
    log_probs = jax.nn.log_softmax(outputs_of(net, sites))
    assert sites["y"]["is_observed"] and sites["y"]["cond_indep_stack"][0].name == "data"
    np.testing.assert_allclose(
        sites["y"]["fn"].log_prob(LABELS), log_probs[np.arange(8), LABELS], rtol=1e-4
    )


@pytest.mark.parametrize("df", [4.0, dist.Gamma(2.0, 0.1)])
def test_student_t(df):
    net = MLP(3, (4,), 1)
    sites = trace(regression(net, PRIOR, 0.5, df=df), X, Y)
    fn = sites["y"]["fn"]
    value = sites["df"]["value"] if isinstance(df, dist.Distribution) else df
    expected = scipy.stats.t.logpdf(Y, value, outputs_of(net, sites)[:, 0], 0.5)
    np.testing.assert_allclose(fn.log_prob(Y), expected, rtol=1e-4)


def test_student_t_with_several_heteroscedastic_targets():
    y = jnp.stack([Y, 10 * Y], 1)
    sites = trace(regression(MLP(3, (4,), 4), PRIOR, "heteroscedastic", df=3), X, y)
    assert sites["y"]["fn"].batch_shape == (8,) and sites["y"]["fn"].event_shape == (2,)


@pytest.mark.parametrize("targets", [1, 2])
def test_counts(targets):
    net = MLP(3, (4,), targets)
    y = LABELS if targets == 1 else jnp.stack([LABELS, 2 * LABELS], 1)
    sites = trace(count_regression(net, PRIOR), X, y)
    rates = np.exp(outputs_of(net, sites)).reshape(y.shape)
    expected = scipy.stats.poisson.logpmf(y, rates)
    expected = expected if targets == 1 else expected.sum(1)
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(y), expected, rtol=1e-4)


@pytest.mark.parametrize("labels", [1, 3])
def test_binary(labels):
    net = MLP(3, (4,), labels)
    y = (LABELS > 0).astype(int) if labels == 1 else jax.nn.one_hot(LABELS, 3, dtype=int)
    sites = trace(binary_classification(net, PRIOR), X, y)
    logits = outputs_of(net, sites).reshape(y.shape)
    expected = np.where(y == 1, jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits))
    expected = expected if labels == 1 else expected.sum(1)
    np.testing.assert_allclose(sites["y"]["fn"].log_prob(y), expected, rtol=1e-4)


class TwoInputs(nnx.Module):
    """A linear function of the features that a mask leaves."""

    def __init__(self):
        self.linear = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    def __call__(self, x, mask):
        return self.linear(jnp.where(mask, x, 0.0))


@pytest.mark.slow
def test_a_network_of_several_inputs():
    x = {"x": np.asarray(X), "mask": np.asarray(X > 0)}
    model = classification(TwoInputs(), PRIOR)
    sites = trace(model, x, LABELS % 2)
    kernel, bias = (sites[f"net/linear.{part}"]["value"] for part in ("kernel", "bias"))
    logits = np.where(X > 0, X, 0.0) @ kernel + bias
    np.testing.assert_allclose(sites["y"]["fn"].logits, logits, rtol=1e-4, atol=1e-5)
    kernel = ppl_bnn.HMC(model, chunk_size=3, num_steps=2, warm_start=10)
    mcmc = MCMC(kernel, num_warmup=2, num_samples=3, progress_bar=False)
    mcmc.run(jax.random.key(0), x, np.asarray(LABELS % 2))
    probs = ppl_bnn.predict(mcmc, jax.tree.map(lambda leaf: leaf[:5], x)).probs
    assert probs.shape == (5, 2)
    with pytest.raises(ValueError, match="x is a tuple; give several inputs as a dictionary"):
        trace(model, (x["x"], x["mask"]), LABELS % 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (regression(eqx.nn.Linear(3, 2, key=jax.random.key(0)), PRIOR, "heteroscedastic"), Y),
        (classification(linen.Dense(3), PRIOR), LABELS),
        (regression(linen.Dense(1), PRIOR, df=dist.Gamma(2.0, 0.1)), Y),
        (count_regression(linen.Dense(1), PRIOR), LABELS),
        (binary_classification(linen.Dense(1), PRIOR), LABELS // 2),
    ],
    ids=["heteroscedastic-equinox", "classification-linen", "student-t", "counts", "binary"],
)
def test_sampling_and_prediction(model, y):
    kernel = HMC(model, num_steps=3, trajectory_length=None)
    mcmc = MCMC(kernel, num_warmup=10, num_samples=10, progress_bar=False)
    mcmc.run(jax.random.key(0), np.asarray(X), np.asarray(y))
    samples = mcmc.get_samples()
    assert all((value.std(axis=0) > 1e-4).all() for value in samples.values())
    prediction = Predictive(model, samples)(jax.random.key(1), X[:5])["y"]
    assert prediction.shape == (10, 5) and prediction.dtype == y.dtype


@pytest.mark.parametrize(
    "model",
    [
        regression(MLP(3, (4,), 1), PRIOR),
        classification(MLP(3, (4,), 3), PRIOR),
        count_regression(MLP(3, (4,), 1), PRIOR),
        binary_classification(MLP(3, (4,), 1), PRIOR),
    ],
    ids=["regression", "classification", "counts", "binary"],
)
def test_pickle_hash_and_repr(model):
    copy = pickle.loads(pickle.dumps(model))
    for name, site in trace(model, X).items():
        if site["type"] == "sample":
            np.testing.assert_array_equal(site["value"], trace(copy, X)[name]["value"])
    assert hash(model) == hash(model) and model != copy
    assert "net=MLP(3, (4,)" in repr(model) and "prior=FanInNormal(gain=1.0" in repr(model)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ("heteroskedastic", "noise must be one of"),
        (0.0, "noise must be a positive and finite number, got 0.0"),
        (-1, "noise must be a positive"),
        (float("nan"), "noise must be a positive"),
        (dist.Normal(0, 1), "prior Normal allows negative values"),
    ],
)
def test_bad_noise(noise, message):
    with pytest.raises(ValueError, match=message):
        regression(MLP(3, (4,), 1), PRIOR, noise)


@pytest.mark.parametrize(
    ("df", "message"),
    [
        (0, "df must be a positive and finite number, got 0"),
        (float("nan"), "df must be a positive"),
        (dist.Normal(0, 1), "df is a number of degrees of freedom, but its prior Normal"),
    ],
)
def test_bad_degrees_of_freedom(df, message):
    with pytest.raises(ValueError, match=message):
        regression(MLP(3, (4,), 1), PRIOR, df=df)


def test_bad_noise_floor():
    with pytest.raises(ValueError, match="noise_floor must be finite and not negative, got -1"):
        regression(MLP(3, (4,), 2), PRIOR, "heteroscedastic", noise_floor=-1.0)


@pytest.mark.parametrize(
    ("outputs", "noise", "y", "message"),
    [
        (1, "heteroscedastic", Y, "two outputs .* net gives 1; build it with out_features=2"),
        (2, "homoscedastic", Y, r"y has shape \(8,\), but the means .* shape \(8, 2\)"),
        (1, "homoscedastic", Y[:, None], r"y has shape \(8, 1\).*pass y\[:, 0\]"),
        (2, "heteroscedastic", Y[:, None], r"y has shape \(8, 1\).*pass y\[:, 0\]"),
        (1, "homoscedastic", Y[:5], r"y has shape \(5,\).*number of rows of y"),
    ],
)
def test_number_of_outputs(outputs, noise, y, message):
    with pytest.raises(ValueError, match=message):
        trace(regression(MLP(3, (4,), outputs), PRIOR, noise), X, y)


def test_noise_prior_that_does_not_fit():
    noise = dist.HalfNormal(jnp.ones(3))
    with pytest.raises(ValueError, match="the prior of noise does not fit"):
        trace(regression(MLP(3, (4,), 1), PRIOR, noise), X, Y)


def test_classification_shapes():
    with pytest.raises(ValueError, match="net gives 1; build it with two outputs"):
        trace(classification(MLP(3, (4,), 1), PRIOR), X, LABELS)
    with pytest.raises(ValueError, match=r"y has shape \(8, 3\), expected \(8,\).*not one-hot"):
        trace(classification(MLP(3, (4,), 3), PRIOR), X, jax.nn.one_hot(LABELS, 3))


def test_shapes_of_counts_and_binary_labels():
    with pytest.raises(ValueError, match=r"y has shape \(8, 1\), but the rates"):
        trace(count_regression(MLP(3, (4,), 1), PRIOR), X, LABELS[:, None])
    with pytest.raises(ValueError, match=r"y has shape \(8,\), but the logits .* \(8, 3\)"):
        trace(binary_classification(MLP(3, (4,), 3), PRIOR), X, LABELS % 2)


def test_network_must_keep_its_output_axis():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(1)(x)[:, 0]

    with pytest.raises(ValueError, match=r"net gives shape \(8,\).*keep the last axis"):
        trace(regression(Net(), PRIOR), X, Y)
