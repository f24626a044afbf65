import json

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import HMC, MCMC

from ppl_bnn.function_space import function_space
from ppl_bnn.rhat import rhat

RNG = np.random.default_rng(0)
X = RNG.normal(size=(9, 3)).astype("float32")
NUM_CHAINS, NUM_DRAWS = 2, 15
SHAPE = (NUM_CHAINS, NUM_DRAWS)
DRAWS = {
    "w1": RNG.normal(size=(*SHAPE, 3, 4)).astype("float32"),
    "w2": RNG.normal(size=(*SHAPE, 4, 2)).astype("float32"),
    "noise": RNG.uniform(0.5, 1.5, SHAPE).astype("float32"),
    # What a deterministic site looks like after a fit on 100 rows.
    "f": np.full((*SHAPE, 100, 2), 7.0, "float32"),
}


def network(x):
    w1 = numpyro.sample("w1", dist.Normal(0, 1).expand([3, 4]).to_event(2))
    w2 = numpyro.sample("w2", dist.Normal(0, 1).expand([4, 2]).to_event(2))
    return numpyro.deterministic("f", jnp.tanh(x @ w1) @ w2)


OUTPUTS = np.einsum(
    "cdnh,cdho->cdno", np.tanh(np.einsum("nf,cdfh->cdnh", X, DRAWS["w1"])), DRAWS["w2"]
)


def model_of(likelihood):
    def model(x, y=None):
        f = network(x)
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", likelihood(f, noise), obs=y)

    return model


homoscedastic = model_of(lambda f, noise: dist.Normal(f[:, 0], noise))


def evaluate(model, x=X, **kwargs):
    functions = function_space(DRAWS, x, model=model, group_by_chain=True, **kwargs)
    return functions.posterior


def close(actual, expected, dims):
    assert actual.dims == ("chain", "draw", *dims)
    np.testing.assert_allclose(actual.values, expected, rtol=1e-4, atol=1e-5)


def test_homoscedastic_regression():
    posterior = evaluate(homoscedastic)
    close(posterior["mean"], OUTPUTS[..., 0], ["point"])
    close(posterior["log_scale"], np.log(DRAWS["noise"]), [])


def test_heteroscedastic_regression():
    posterior = evaluate(model_of(lambda f, _: dist.Normal(f[:, 0], jnp.exp(f[:, 1]))))
    close(posterior["mean"], OUTPUTS[..., 0], ["point"])
    close(posterior["log_scale"], OUTPUTS[..., 1], ["point"])


def test_wrappers_are_looked_through():
    def masked(f, noise):
        return dist.Normal(f, noise).mask(jnp.ones(f.shape, bool)).to_event(1)

    posterior = evaluate(model_of(masked))
    close(posterior["mean"], OUTPUTS, ["point", "output"])
    close(posterior["log_scale"], np.log(DRAWS["noise"]), [])


def test_log_probs_do_not_saturate():
    posterior = evaluate(model_of(lambda f, _: dist.Categorical(logits=1000 * f)))
    logits = 1000.0 * OUTPUTS
    expected = logits - np.logaddexp(logits[..., :1], logits[..., 1:])
    assert expected.min() < -1000
    got = posterior["log_probs"]
    assert got.dims == ("chain", "draw", "point", "class")
    rounding = np.spacing(np.abs(logits).max())  # of the logits, which are subtracted
    np.testing.assert_allclose(got.values, expected, rtol=1e-4, atol=4 * rounding)


def test_bernoulli_has_two_classes():
    posterior = evaluate(model_of(lambda f, _: dist.Bernoulli(logits=f[:, 0])))
    both = np.stack([np.zeros_like(OUTPUTS[..., 0]), OUTPUTS[..., 0]], -1)
    expected = both - np.logaddexp(both[..., :1], both[..., 1:])
    close(posterior["log_probs"], expected, ["point", "class"])


def test_probabilities_of_zero_stay_finite():
    def likelihood(f, _):
        return dist.Categorical(probs=jnp.stack([f[:, 0] > 0, f[:, 0] <= 0], -1) * 1.0)

    assert np.isfinite(evaluate(model_of(likelihood))["log_probs"]).all()


@pytest.mark.parametrize(
    ("likelihood", "expected"),
    [
        (lambda f, n: dist.Poisson(jnp.exp(f[:, 0])), {"log_rate": True}),
        (
            lambda f, n: dist.StudentT(3 + n, f[:, 0], jnp.exp(f[:, 1])),
            {"log_df": False, "loc": True, "log_scale": True},
        ),
        (lambda f, n: dist.LogNormal(f[:, 0], n), {"loc": True, "log_scale": False}),
        (
            lambda f, n: dist.ZeroInflatedDistribution(dist.Poisson(jnp.exp(f[:, 0])), gate=n / 2),
            {"log_rate": True, "logit_gate": False},
        ),
        (
            lambda f, n: dist.BetaProportion(jax.nn.sigmoid(f[:, 0]), n),
            {"logit_mean": True, "log_concentration": False},
        ),
        (
            lambda f, n: dist.MixtureSameFamily(
                dist.Categorical(jnp.ones(2) / 2), dist.Normal(f, n)
            ),
            {"mean": True, "log_variance": True},
        ),
        (
            lambda f, n: dist.TransformedDistribution(
                dist.Normal(f[:, 0], n), dist.transforms.ExpTransform()
            ),
            {"mean": True, "log_scale": False},
        ),
    ],
)
def test_other_distributions(likelihood, expected):
    posterior = evaluate(model_of(likelihood))
    assert {name: "point" in v.dims for name, v in posterior.data_vars.items()} == expected
    assert all(np.isfinite(v).all() for v in posterior.data_vars.values())


def test_values_of_unbounded_parameters():
    posterior = evaluate(
        model_of(lambda f, n: dist.BetaProportion(jax.nn.sigmoid(f[:, 0]), jnp.exp(f[:, 1])))
    )
    close(posterior["logit_mean"], OUTPUTS[..., 0], ["point"])
    close(posterior["log_concentration"], OUTPUTS[..., 1], ["point"])


@pytest.mark.parametrize("sizes", [(1, 1), (7, 4), (100, 100), (16, None)])
def test_chunks_change_nothing(sizes):
    batch_size, points_batch_size = sizes
    parts = evaluate(homoscedastic, batch_size=batch_size, points_batch_size=points_batch_size)
    close(parts["mean"], OUTPUTS[..., 0], ["point"])
    close(parts["log_scale"], np.log(DRAWS["noise"]), [])


def test_memory_is_bounded_by_the_chunk():
    """The largest array inside the compiled evaluation holds one chunk of draws and points."""
    shapes = []

    def model(x, y=None):
        f = network(x)
        shapes.append(x.shape)
        numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(f[:, 0], 1.0), obs=y)

    x = np.zeros((5000, 3), "float32")
    posterior = evaluate(model, x, batch_size=2, points_batch_size=100)
    assert posterior["mean"].shape == (*SHAPE, 5000)
    # The checks before look at the whole of `x`, but abstractly; what is compiled comes last.
    num_rows, _ = shapes[-1]
    assert num_rows == 100


@pytest.mark.parametrize("num_points", [1, 2, 4, 15, 30])
def test_no_axis_is_mistaken_for_the_points(num_points):
    """Numbers of rows that equal the numbers of outputs, hidden units, draws."""
    x = RNG.normal(size=(num_points, 3)).astype("float32")
    posterior = evaluate(model_of(lambda f, n: dist.Normal(f, n).to_event(1)), x)
    assert posterior["mean"].shape == (*SHAPE, num_points, 2)
    assert posterior["log_scale"].shape == SHAPE


def test_several_inputs_and_keywords():
    def model(x, offset, slope=0.0, y=None):
        f = network(x)[:, 0] + slope * offset
        numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(f, 1.0), obs=y)

    offset = np.arange(9.0)
    posterior = evaluate(model, (X, offset), points_batch_size=4, model_kwargs={"slope": 2.0})
    close(posterior["mean"], OUTPUTS[..., 0] + 2 * offset, ["point"])


def test_constant_points_are_counted():
    posterior = evaluate(homoscedastic, np.concatenate([X, np.zeros((2, 3), "float32")]))
    assert json.loads(posterior.attrs["num_constant"]) == {"log_scale": 0, "mean": 2}
    result = rhat(posterior if hasattr(posterior, "data_vars") else posterior.to_dataset())
    assert result.num_constant == 2 and result.values.shape == (10,)
    assert not np.isnan(result.values).any()


def test_arviz_reads_it():
    functions = function_space(DRAWS, X, model=homoscedastic, group_by_chain=True)
    assert len(az.summary(functions)) == 10
    ours, theirs = rhat(functions), az.rhat(functions)
    theirs = theirs if "mean" in theirs else theirs["posterior"]
    for name in ("mean", "log_scale"):
        np.testing.assert_allclose(ours.variables[name], theirs[name].values, rtol=1e-6)


def test_mcmc():
    y = np.zeros(9, "float32")
    mcmc = MCMC(
        HMC(homoscedastic, trajectory_length=0.5),
        num_warmup=5,
        num_samples=6,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, y)
    at_fit = mcmc.get_samples(group_by_chain=True)["f"][..., 0]
    close(function_space(mcmc, X).posterior["mean"], at_fit, ["point"])
    with pytest.raises(ValueError, match="`x` has 2 features, the model was fitted on 3"):
        function_space(mcmc, X[:, :2])
    with pytest.raises(ValueError, match=r"rows of `x` have shape \(\), the model was fitted on"):
        function_space(mcmc, X[:, 0])


def test_site_is_chosen_among_several():
    def model(x, y=None, z=None):
        f = network(x)
        numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(f[:, 0], 1.0), obs=y)
            numpyro.sample("z", dist.Poisson(jnp.exp(f[:, 1])), obs=z)

    with pytest.raises(ValueError, match=r"\['y', 'z'\]; choose the one to predict by `site=`"):
        evaluate(model)
    close(evaluate(model, site="z")["log_rate"], OUTPUTS[..., 1], ["point"])
    with pytest.raises(ValueError, match="'w1' is no observed site"):
        evaluate(model, site="w1")


def test_missing_latent_site_is_no_constant():
    def model(x, y=None):
        f = network(x)
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        shift = numpyro.sample("shift", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(f[:, 0] + shift, noise), obs=y)

    with pytest.raises(ValueError, match=r"random sites that `draws` do not hold: \['shift'\]"):
        evaluate(model, site="y")


def test_rows_that_interact():
    def model(x, y=None):
        f = network(x - x.mean(axis=0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(f[:, 0], noise), obs=y)

    with pytest.raises(ValueError, match=r"changes with the other rows.*points_batch_size=None"):
        evaluate(model, points_batch_size=4)
    assert evaluate(model, points_batch_size=None)["mean"].shape == (*SHAPE, 9)


def no_y(x):
    network(x)
    numpyro.sample("noise", dist.HalfNormal(1.0))


def needs_y(x, y):
    homoscedastic(x, y)


def fixed_rows(x, y=None):
    f = network(x)
    numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", 9):
        numpyro.sample("y", dist.Normal(f[:, 0], 1.0), obs=y)


def subsampled(x, y=None):
    f = network(x)
    numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0], subsample_size=x.shape[0] - 1) as index:
        numpyro.sample("y", dist.Normal(f[index, 0], 1.0), obs=y)


def one_number(x, y=None):
    f = network(x)
    numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(f.mean(), 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (homoscedastic, X[:, :2], r"does not run on the draws at `x` of shape \(9, 2\)"),
        (homoscedastic, X[:0], "has no rows"),
        (homoscedastic, np.where(X == X[0, 0], np.nan, X), "NaN or infinite"),
        (homoscedastic, (X, X[:3]), r"one length for all; got shapes \[\(9, 3\), \(3, 3\)\]"),
        (homoscedastic, np.float32(1.0), "leading axis of data points"),
        (no_y, X, "leaves no site unobserved"),
        (needs_y, X, "default of None"),
        (fixed_rows, X, "number of rows from `x`"),
        (subsampled, X, "plate 'data' draws a random subset"),
        (one_number, X, "the same shape for every number of rows"),
        (None, X, "give it as `model=`"),
    ],
)
def test_bad_models_and_inputs(model, x, message):
    with pytest.raises(ValueError, match=message):
        evaluate(model, x)


def test_draws_of_another_model():
    with pytest.raises(ValueError, match=r"hold none of the model's latent sites.*\['v'\]"):
        function_space({"v": np.zeros(5)}, X, model=homoscedastic)


@pytest.mark.parametrize("name", ["batch_size", "points_batch_size"])
def test_bad_sizes(name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, got 0"):
        evaluate(homoscedastic, **{name: 0})


def test_masks_of_the_fit_do_not_matter():
    masked = handlers.mask(homoscedastic, mask=False)
    close(evaluate(masked)["mean"], OUTPUTS[..., 0], ["point"])
