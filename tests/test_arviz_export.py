import json

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro.infer import HMC, MCMC
from numpyro.infer.util import log_likelihood as numpyro_log_likelihood

import ppl_bnn
from ppl_bnn.arviz_export import _run_settings, to_arviz
from ppl_bnn.draws import Draws
from ppl_bnn.function_space import function_space

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype("float32")
Y = np.sin(X[:, 0])
X_TEST = RNG.normal(size=(5, 3)).astype("float32")


def model(x, y=None):
    w1 = numpyro.sample("net/layers.0.kernel", dist.Normal(0, 1).expand([3, 4]).to_event(2))
    b1 = numpyro.sample("net/layers.0.bias", dist.Normal(0, 1).expand([4]).to_event(1))
    w2 = numpyro.sample("net/layers.1.weight", dist.Normal(0, 1).expand([1, 4]).to_event(2))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    f = (jnp.tanh(x @ w1 + b1) @ w2.T)[:, 0]
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(f, noise), obs=y)


@pytest.fixture(scope="module")
def mcmc():
    mcmc = MCMC(
        HMC(model, trajectory_length=0.5),
        num_warmup=10,
        num_samples=60,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    fields = ("accept_prob", "energy", "potential_energy", "num_steps", "adapt_state.step_size")
    mcmc.run(jax.random.key(0), X, Y, extra_fields=fields)
    return mcmc


@pytest.fixture(scope="module")
def exported(mcmc):
    return to_arviz(mcmc, X, Y, x_test=X_TEST, log_likelihood=True, points_batch_size=5)


def group(data, name):
    return data[name].to_dataset() if isinstance(data, xr.DataTree) else data[name]


def test_posterior_has_named_dims(exported, mcmc):
    posterior = group(exported, "posterior")
    assert set(posterior.data_vars) == {
        "net.layers.0.kernel",
        "net.layers.0.bias",
        "net.layers.1.weight",
        "noise",
    }
    kernel = posterior["net.layers.0.kernel"]
    assert kernel.dims == ("chain", "draw", "net.layers.0.kernel_in", "net.layers.0.kernel_out")
    weight = posterior["net.layers.1.weight"]
    assert weight.dims[2:] == ("net.layers.1.weight_out", "net.layers.1.weight_in")
    assert posterior["net.layers.0.bias"].dims[2:] == ("net.layers.0.bias_out",)
    expected = mcmc.get_samples(group_by_chain=True)["net/layers.0.kernel"]
    np.testing.assert_array_equal(kernel.values, expected)


def test_sample_stats_have_arvizs_names(exported, mcmc):
    stats = group(exported, "sample_stats")
    assert set(stats.data_vars) == {
        "acceptance_rate",
        "diverging",
        "energy",
        "lp",
        "n_steps",
        "step_size",
    }
    fields = mcmc.get_extra_fields(group_by_chain=True)
    np.testing.assert_array_equal(stats["lp"].values, -fields["potential_energy"])
    assert stats["diverging"].dtype == bool


def test_our_own_statistics():
    shape = (2, 4)
    stats = {
        "metropolis": np.ones(shape, bool),
        "is_accepted": np.zeros(shape, bool),
        "failed_at": np.full(shape, -1),
        "trajectory_length": np.ones(shape),
        "step_size": np.ones(shape),
    }
    data = to_arviz(Draws(samples={"w": np.zeros((*shape, 2))}, stats=stats))
    names = {"metropolis", "accepted", "failed_at", "int_time", "step_size"}
    assert set(group(data, "sample_stats").data_vars) == names


def test_log_likelihood_is_numpyros(exported, mcmc):
    samples = mcmc.get_samples(group_by_chain=True)
    expected = numpyro_log_likelihood(model, samples, X, Y, batch_ndims=2)["y"]
    actual = group(exported, "log_likelihood")["y"]
    assert actual.dims == ("chain", "draw", "point")
    np.testing.assert_allclose(actual.values, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(group(exported, "observed_data")["y"].values, Y)


def test_predictions_are_function_space(exported, mcmc):
    expected = group(function_space(mcmc, X_TEST), "posterior")
    for name in ("mean", "log_scale"):
        actual = group(exported, "predictions")[name]
        np.testing.assert_allclose(actual.values, expected[name].values, rtol=1e-5)


def test_attributes_say_what_was_run(exported):
    attrs = group(exported, "posterior").attrs
    assert attrs["inference_library"] == "numpyro" and attrs["sampler"] == "HMC"
    assert (attrs["num_warmup"], attrs["num_samples"], attrs["num_chains"]) == (10, 60, 2)
    assert json.loads(attrs["sampler_settings"])["trajectory_length"] == 0.5
    assert attrs["jax_version"] == jax.__version__


def test_settings_of_our_kernels():
    mcmc = MCMC(ppl_bnn.HMC(model, metropolis=False, temperature=0.5), num_warmup=1, num_samples=1)
    settings = json.loads(_run_settings(mcmc)["sampler_settings"])
    assert settings["metropolis"] is False and settings["temperature"] == 0.5


def test_netcdf_round_trip(exported, tmp_path):
    path = tmp_path / "run.nc"
    exported.to_netcdf(path)
    read = az.from_netcdf(path)
    for name in ("posterior", "sample_stats", "log_likelihood", "predictions", "observed_data"):
        before, after = group(exported, name), group(read, name)
        xr.testing.assert_equal(before, after)
        assert after.attrs["ppl_bnn_version"] == before.attrs["ppl_bnn_version"]
        assert {k: v.dtype for k, v in before.items()} == {k: v.dtype for k, v in after.items()}


def test_a_saved_run_predicts_like_the_run(mcmc, exported, tmp_path):
    exported.to_netcdf(tmp_path / "run.nc")
    read = az.from_netcdf(tmp_path / "run.nc")
    direct = ppl_bnn.predict(mcmc, X_TEST).mean
    np.testing.assert_array_equal(ppl_bnn.predict(read, X_TEST, model=model).mean, direct)


def test_every_dimension_has_coordinates(exported):
    for name in ("posterior", "log_likelihood", "predictions", "observed_data"):
        data = group(exported, name)
        assert set(data.dims) == set(data.coords)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_arviz_uses_it(exported):
    assert len(az.summary(exported, var_names=["noise"])) == 1
    assert "120 posterior samples and 12 observations" in str(az.loo(exported))


def test_only_what_was_asked_for(mcmc):
    data = to_arviz(mcmc)
    groups = set(data.children) if isinstance(data, xr.DataTree) else set(data.groups())
    assert groups == {"posterior", "sample_stats"}


def test_own_dims(mcmc):
    data = to_arviz(mcmc, dims={"net/layers.0.kernel": ["feature", "hidden"]})
    kernel = group(data, "posterior")["net.layers.0.kernel"]
    assert kernel.dims[2:] == ("feature", "hidden")
    with pytest.raises(ValueError, match=r"`dims` names sites \['kernel'\] that have no draws"):
        to_arviz(mcmc, dims={"kernel": ["feature", "hidden"]})


def test_bad_input(mcmc):
    with pytest.raises(ValueError, match="needs the inputs `x` and the observed values `y`"):
        to_arviz(mcmc, X, log_likelihood=True)
    with pytest.raises(ValueError, match=r"shape \(12,\) of site 'y'.*got \(3,\)"):
        to_arviz(mcmc, X, Y[:3], log_likelihood=True)
    same = {"a/b": np.zeros((4, 1)), "a.b": np.zeros((4, 1))}
    with pytest.raises(ValueError, match=r"both be saved as 'a\.b'"):
        to_arviz(same)
