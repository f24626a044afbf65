"""Networks that check the values of their inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro.infer import MCMC, NUTS, Predictive

import ppl_bnn
from ppl_bnn import models, priors


class Words(nnx.Module):
    """An embedding that refuses ids beyond its table."""

    def __init__(self, size):
        self.size = size
        self.table = nnx.Param(jnp.ones((size, 1)))

    def __call__(self, ids):
        return jnp.take(self.table[...], ids, axis=0, mode="fill").mean(1)

    def check_inputs(self, ids):
        if ids.max() >= self.size:
            raise ValueError(f"id {ids.max()} lies beyond the {self.size} words of the table")


PRIOR = priors.normal()
GOOD, BAD = np.array([[0, 1], [2, 3], [3, 3]]), np.array([[0, 1], [2, 7], [3, 3]])
Y = np.array([0.0, 1.0, 2.0], np.float32)


def by_hand(x, y=None):
    net = ppl_bnn.random_module("net", Words(4), PRIOR)
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(net(x - 0)[:, 0], 1.0), obs=y)


MODELS = {"by hand": by_hand, "ready": models.regression(Words(4), PRIOR, 1.0)}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_hmc_checks_values_before_it_samples(name, chunk_size):
    kernel = ppl_bnn.HMC(MODELS[name], chunk_size=chunk_size)
    kernel._target_for((GOOD, Y), {})
    with pytest.raises(ValueError, match="id 7 lies beyond the 4 words"):
        kernel.init(jax.random.key(0), 0, None, (BAD, Y), {})


class Sizes(nnx.Module):
    """Looks at its inputs, but not for NaN, unless it says so."""

    def __init__(self, checks_finite):
        self.scale = nnx.Param(jnp.ones(1))
        self.checks_finite = checks_finite

    def __call__(self, x):
        return self.scale * jnp.nan_to_num(x)

    def check_inputs(self, x):
        assert x.shape == (3, 1)


def test_only_what_a_network_says_it_checks_may_be_nan():
    x = np.array([[0.0], [np.nan], [1.0]], np.float32)
    kernel = ppl_bnn.HMC(models.regression(Sizes(()), PRIOR, 1.0))
    with pytest.raises(ValueError, match="`x` has 1 entries that are NaN"):
        kernel._target_for((x, Y), {})
    kernel = ppl_bnn.HMC(models.regression(Sizes(("x",)), PRIOR, 1.0))
    kernel._target_for((x, Y), {})


def test_full_batch_checks_values():
    mcmc = MCMC(
        NUTS(ppl_bnn.full_batch(by_hand, chunk_size=2)),
        num_warmup=1,
        num_samples=1,
        progress_bar=False,
    )
    with pytest.raises(ValueError, match="id 7"):
        mcmc.run(jax.random.key(0), BAD, Y)


@pytest.mark.parametrize("name", MODELS)
def test_prediction_checks_values(name):
    samples = Predictive(MODELS[name], num_samples=4)(jax.random.key(0), GOOD)
    samples.pop("y")
    assert ppl_bnn.predict(samples, GOOD, model=MODELS[name]).mean.shape == (3,)
    with pytest.raises(ValueError, match="id 7"):
        ppl_bnn.predict(samples, BAD, model=MODELS[name])


def test_nothing_is_checked_where_values_are_not_known():
    kernel = ppl_bnn.HMC(MODELS["ready"])

    def log_density(x):
        target = kernel._target_for((x, Y), {})
        position = {"net/table": jnp.zeros((4, 1))}
        return target.log_density(target.data.read())(position).sum()

    assert np.isfinite(jax.jit(log_density)(GOOD))
