import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import HMC, MCMC

from ppl_bnn.draws import Draws, as_draws


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


@pytest.fixture(scope="module")
def mcmc():
    mcmc = MCMC(
        HMC(model, trajectory_length=0.5),
        num_warmup=20,
        num_samples=10,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    x = np.arange(5.0)
    mcmc.run(jax.random.key(0), x, x, extra_fields=("energy", "adapt_state.step_size"))
    return mcmc


def test_mcmc(mcmc):
    draws = as_draws(mcmc)
    assert draws.model is model
    assert (draws.num_chains, draws.num_draws) == (2, 10)
    np.testing.assert_array_equal(draws.samples["w"], mcmc.get_samples(group_by_chain=True)["w"])
    np.testing.assert_array_equal(draws.flat()["w"], mcmc.get_samples()["w"])
    assert {"diverging", "energy", "adapt_state.step_size"} <= set(draws.stats)
    assert draws.stats["energy"].shape == (2, 10)
    assert draws.fitted["x"].shape == (5,)


def test_another_model_takes_precedence(mcmc):
    assert as_draws(mcmc, len).model is len
    assert as_draws(as_draws(mcmc), len).model is len
    assert as_draws(as_draws(mcmc)).model is model


def test_dictionaries():
    flat = as_draws({"w": np.zeros((6, 3))})
    assert (flat.num_chains, flat.num_draws) == (1, 6)
    grouped = as_draws({"w": np.zeros((2, 3, 4))}, group_by_chain=True)
    assert isinstance(grouped, Draws) and (grouped.num_chains, grouped.num_draws) == (2, 3)


@pytest.mark.parametrize(
    ("draws", "grouped", "message"),
    [
        ({}, False, "empty dictionary"),
        ({"a": np.zeros((6, 3)), "b": np.zeros((5, 3))}, False, "differ in their numbers"),
        ({"a": np.zeros(6)}, True, r"start with the axis of draws, or with \(chain, draw\)"),
        ({"a": np.zeros((0, 3))}, False, "holds no draws"),
    ],
)
def test_bad_dictionaries(draws, grouped, message):
    with pytest.raises(ValueError, match=message):
        as_draws(draws, group_by_chain=grouped)


def test_other_input():
    with pytest.raises(TypeError, match=r"MCMC that has run.*got list"):
        as_draws([1, 2])
    with pytest.raises(ValueError, match="call its `run` first"):
        as_draws(MCMC(HMC(model), num_warmup=1, num_samples=1))
