import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import optimize, stats
from scipy.special import logsumexp

from ppl_bnn.predict import ClassificationPrediction, RegressionPrediction, predict

NUM_DRAWS = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(11, 3)).astype("float32")
WEIGHTS = RNG.normal(size=(NUM_DRAWS, 3)).astype("float32")
SCALES = RNG.uniform(0.2, 2.0, NUM_DRAWS).astype("float32")
DRAWS = {"w": WEIGHTS, "scale": SCALES}
MEANS = WEIGHTS @ X.T
LEVELS = (0.01, 0.3, 0.95)


def regression(likelihood):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", likelihood(x @ w, scale), obs=y)

    return model


normal = regression(dist.Normal)


def quantiles_by_root_finding(frozen, levels, low, high):
    """Root of each point's mixture cdf, on its own."""
    return np.array(
        [
            [
                optimize.brentq(lambda v, i=i, q=q: frozen.cdf(v)[:, i].mean() - q, low, high)
                for i in range(len(X))
            ]
            for q in levels
        ]
    )


def test_moments_follow_the_law_of_total_variance():
    prediction = predict(DRAWS, X, model=normal)
    assert isinstance(prediction, RegressionPrediction)
    np.testing.assert_allclose(prediction.mean, MEANS.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prediction.epistemic_variance, MEANS.var(0), rtol=1e-4)
    np.testing.assert_allclose(prediction.aleatoric_variance, np.mean(SCALES**2), rtol=1e-4)
    second = np.mean(MEANS**2 + SCALES[:, None] ** 2, axis=0)
    np.testing.assert_allclose(prediction.variance, second - MEANS.mean(0) ** 2, rtol=1e-4)


def test_quantiles_are_those_of_the_mixture():
    prediction = predict(DRAWS, X, model=normal, quantiles=LEVELS)
    frozen = stats.norm(MEANS.astype(float), SCALES[:, None].astype(float))
    expected = quantiles_by_root_finding(frozen, LEVELS, -50, 50)
    np.testing.assert_allclose(prediction.quantiles, expected, rtol=1e-4, atol=1e-4)
    of_means = np.quantile(MEANS, LEVELS, axis=0)
    assert np.abs(of_means - expected).max() > 0.1


def test_quantiles_of_heavy_tails():
    model = regression(lambda loc, scale: dist.StudentT(1.5, loc, scale))
    prediction = predict(DRAWS, X, model=model, quantiles=LEVELS)
    frozen = stats.t(1.5, MEANS.astype(float), SCALES[:, None].astype(float))
    expected = quantiles_by_root_finding(frozen, LEVELS, -1e4, 1e4)
    np.testing.assert_allclose(prediction.quantiles, expected, rtol=2e-3, atol=2e-3)


def test_quantiles_without_inverse_cdf():
    model = regression(lambda loc, scale: dist.Weibull(scale, jnp.exp(loc / 3)))
    prediction = predict(DRAWS, X, model=model, quantiles=LEVELS)
    shape, scale = np.exp(MEANS.astype(float) / 3), SCALES[:, None].astype(float)
    frozen = stats.weibull_min(shape, scale=scale)
    expected = quantiles_by_root_finding(frozen, LEVELS, 0, 100)
    np.testing.assert_allclose(prediction.quantiles, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("likelihood", "frozen"),
    [
        (lambda loc, scale: dist.Poisson(scale * jnp.exp(loc / 2)), stats.poisson),
        (
            lambda loc, scale: dist.GammaPoisson(2.0, 2.0 / (scale * jnp.exp(loc / 2))),
            lambda mean: stats.nbinom(2, 2 / (2 + mean)),
        ),
    ],
)
def test_quantiles_of_counts(likelihood, frozen):
    prediction = predict(DRAWS, X, model=regression(likelihood), quantiles=LEVELS)
    mean = SCALES[:, None] * np.exp(MEANS.astype(float) / 2)
    cumulative = np.stack([frozen(mean).cdf(k).mean(0) for k in range(200)])
    expected = np.stack([(cumulative < q).sum(axis=0) for q in LEVELS])
    np.testing.assert_array_equal(prediction.quantiles, expected)


def test_log_prob_is_that_of_the_mixture():
    y = RNG.normal(size=11)
    expected = logsumexp(stats.norm(MEANS, SCALES[:, None]).logpdf(y), axis=0) - np.log(NUM_DRAWS)
    np.testing.assert_allclose(predict(DRAWS, X, model=normal).log_prob(y), expected, rtol=1e-4)


def test_chunks_change_nothing():
    y = RNG.normal(size=11)
    whole = predict(DRAWS, X, model=normal, quantiles=LEVELS, batch_size=NUM_DRAWS)
    parts = predict(
        DRAWS,
        X,
        model=normal,
        quantiles=LEVELS,
        batch_size=7,
        points_batch_size=4,
        return_draws=True,
    )
    for name in ("mean", "epistemic_variance", "aleatoric_variance", "quantiles"):
        a, b = getattr(whole, name), getattr(parts, name)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(whole.log_prob(y), parts.log_prob(y), rtol=1e-5)
    assert whole.draws is None and parts.draws.shape == (1, NUM_DRAWS, 11)
    np.testing.assert_allclose(parts.draws[0], MEANS, rtol=1e-4, atol=1e-5)


def test_draws_keep_chains_apart():
    grouped = {name: value.reshape(4, 10, *value.shape[1:]) for name, value in DRAWS.items()}
    prediction = predict(grouped, X, model=normal, group_by_chain=True, return_draws=True)
    np.testing.assert_allclose(prediction.draws, MEANS.reshape(4, 10, 11), rtol=1e-4, atol=1e-5)


def test_several_outputs_in_every_layout():
    weights = RNG.normal(size=(NUM_DRAWS, 3, 2)).astype("float32")
    y = RNG.normal(size=(11, 2))
    means = np.einsum("dfk,nf->dnk", weights, X)

    def event(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)

    def one_event(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
        numpyro.sample("y", dist.Normal(x @ w, 0.5).to_event(2), obs=y)

    def rows_last(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 2]).to_event(2))
        with numpyro.plate("outputs", 2, dim=-2), numpyro.plate("data", x.shape[0], dim=-1):
            numpyro.sample("y", dist.Normal((x @ w).T, 0.5), obs=y)

    joint = stats.norm(means, 0.5).logpdf(y).sum(-1)
    for model in (event, one_event, rows_last):
        prediction = predict({"w": weights}, X, model=model, quantiles=(0.5,), points_batch_size=4)
        np.testing.assert_allclose(prediction.mean, means.mean(0), rtol=1e-4, atol=1e-5)
        assert prediction.quantiles.shape == (1, 11, 2)
        expected = logsumexp(joint, axis=0) - np.log(NUM_DRAWS)
        np.testing.assert_allclose(prediction.log_prob(y), expected, rtol=1e-4)


def classifier(kind):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 4]).to_event(2))
        logits = x @ w
        likelihood = {
            "logits": lambda: dist.Categorical(logits=logits),
            "probs": lambda: dist.Categorical(probs=jax.nn.softmax(logits)),
            "binary": lambda: dist.Bernoulli(logits=logits[:, 0]),
            "binary_probs": lambda: dist.Bernoulli(probs=1 / (1 + jnp.exp(-logits[:, 0]))),
        }[kind]()
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", likelihood, obs=y)

    return model


@pytest.mark.parametrize("kind", ["logits", "probs", "binary", "binary_probs"])
def test_classification(kind):
    weights = RNG.normal(size=(NUM_DRAWS, 3, 4)).astype("float32")
    logits = np.einsum("dfk,nf->dnk", weights, X).astype(float)
    if kind.startswith("binary"):
        logits = np.stack([np.zeros_like(logits[..., 0]), logits[..., 0]], -1)
    each = np.exp(logits - logsumexp(logits, axis=-1, keepdims=True))
    prediction = predict(
        {"w": weights}, X, model=classifier(kind), points_batch_size=4, return_draws=True
    )
    assert isinstance(prediction, ClassificationPrediction)
    np.testing.assert_allclose(prediction.probs, each.mean(0), atol=1e-5)
    np.testing.assert_allclose(prediction.draws[0], each, atol=1e-5)
    expected_entropy = stats.entropy(each, axis=-1).mean(0)
    np.testing.assert_allclose(prediction.expected_entropy, expected_entropy, atol=1e-5)
    information = stats.entropy(each.mean(0), axis=-1) - expected_entropy
    np.testing.assert_allclose(prediction.mutual_information, information, atol=1e-5)
    y = RNG.integers(0, each.shape[-1], 11)
    np.testing.assert_allclose(
        prediction.log_prob(y), np.log(each.mean(0)[np.arange(11), y]), atol=1e-4
    )
    with pytest.raises(ValueError, match="integer class labels, got dtype float64"):
        prediction.log_prob(y + 0.0)
    with pytest.raises(ValueError, match=f"labels from 0 to {each.shape[-1] - 1}, got 9 to 9"):
        prediction.log_prob(np.full(11, 9))
    with pytest.raises(ValueError, match="have no quantiles"):
        predict({"w": weights}, X, model=classifier(kind), quantiles=[0.5])


def test_saturated_classes_have_no_nan():
    weights = 1e3 * RNG.normal(size=(5, 3, 4)).astype("float32")
    for kind in ("logits", "binary", "binary_probs"):
        prediction = predict({"w": weights}, X, model=classifier(kind))
        assert np.isfinite(prediction.expected_entropy).all()
        assert np.isfinite(prediction.mutual_information).all()


def test_masked_rows_have_no_likelihood():
    keep = np.arange(11) % 2 == 0

    def model(x, keep, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]), numpyro.handlers.mask(mask=keep):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    prediction = predict({"w": WEIGHTS}, (X, keep), model=model, quantiles=[0.5])
    assert np.array_equal(prediction.log_prob(np.zeros(11)) == 0, ~keep)


@pytest.mark.parametrize(
    ("quantiles", "message"), [((0.0, 0.5), "between 0 and 1"), ((5, 95), "between 0 and 1")]
)
def test_bad_quantiles(quantiles, message):
    with pytest.raises(ValueError, match=message):
        predict(DRAWS, X, model=normal, quantiles=quantiles)


def test_quantiles_need_a_cdf():
    model = regression(dist.VonMises)
    with pytest.raises(ValueError, match="VonMises has no cumulative"):
        predict(DRAWS, X, model=model, quantiles=[0.5])


def test_bad_y():
    prediction = predict(DRAWS, X, model=normal)
    with pytest.raises(ValueError, match=r"shape \(11,\) of site 'y'.*got \(11, 1\)"):
        prediction.log_prob(np.zeros((11, 1)))
    with pytest.raises(ValueError, match="NaN or infinite"):
        prediction.log_prob(np.full(11, np.nan))
