"""Simulation-based calibration of the core on a small network (Talts et al. 2018).

Draw parameters from the prior and data from the likelihood; run the sampler; the rank of the true
quantity among its posterior draws is uniform if, and in practice only if, the sampler is right.
The data's own log likelihood is among the quantities, without which a sampler that ignores the
data and draws from the prior would pass (Modrák et al. 2023).
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from ppl_bnn.density import density_terms, run_at
from ppl_bnn.inference import hmc
from ppl_bnn.inference.mass_matrix import make_metric

REPLICATIONS, DRAWS, THINNING, BURN_IN = 1000, 63, 4, 60
INPUTS = jnp.linspace(-2.0, 2.0, 12)[:, None]
NEW = jnp.array([[-1.1], [0.4], [3.0]])


def network(weights, x):
    hidden = jnp.tanh(x @ weights["first"] + weights["shift"])
    return hidden @ weights["second"]


def model(x, y=None):
    weights = {
        "first": numpyro.sample("first", dist.Normal(0, 1.5).expand([1, 3]).to_event(2)),
        "shift": numpyro.sample("shift", dist.Normal(0, 1).expand([3]).to_event(1)),
        "second": numpyro.sample("second", dist.Normal(0, 1).expand([3]).to_event(1)),
    }
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(network(weights, x), noise), obs=y)


def quantities(position, y):
    """f at new inputs, log noise, and the data's log likelihood; shape (5,)."""
    noise = jnp.exp(position["noise"])
    log_likelihood = dist.Normal(network(position, INPUTS), noise).log_prob(y).sum()
    return jnp.concatenate([network(position, NEW), position["noise"][None], log_likelihood[None]])


def ranks(*, temperature=1.0, uses_data=True):
    """Ranks of the true quantities among posterior draws, shape (replications, 5)."""
    scale = {"first": 1.5, "shift": 1.0, "second": 1.0, "noise": 0.5}

    def replicate(key):
        key_truth, key_chain = jax.random.split(key)
        trace = handlers.trace(handlers.seed(model, key_truth)).get_trace(INPUTS)
        truth = {name: trace[name]["value"] for name in scale}
        truth["noise"] = jnp.log(truth["noise"])
        y = trace["y"]["value"]
        hide = frozenset() if uses_data else frozenset({"y"})

        def log_density(position):
            return density_terms(*run_at(model, position, (INPUTS, y), {}), temperature, skip=hide)

        metric = make_metric({n: jnp.full(jnp.shape(truth[n]), s**2) for n, s in scale.items()})

        def move(state, key):
            key_length, key_step = jax.random.split(key)
            # lengths are spread as in `ppl_bnn.HMC`, independently of the chain
            num_steps = jax.random.randint(key_length, (), 22, 42)
            state, info = hmc.step(
                key_step,
                state,
                log_density,
                metric=metric,
                step_size=0.05,
                num_steps=num_steps,
                temperature=temperature,
            )
            return state, (state.position, info.accept_prob)

        keys = jax.random.split(key_chain, BURN_IN + DRAWS * THINNING)
        _, (positions, accept_prob) = jax.lax.scan(move, hmc.init(truth, log_density), keys)
        kept = jax.tree.map(lambda x: x[BURN_IN + THINNING - 1 :: THINNING], positions)
        drawn = jax.vmap(lambda position: quantities(position, y))(kept)
        rank = jnp.sum(drawn < quantities(truth, y), axis=0)
        return rank, accept_prob.mean()

    keys = jax.random.split(jax.random.key(2021), REPLICATIONS)
    rank, accept_prob = jax.jit(jax.vmap(replicate))(keys)
    return np.asarray(rank), float(jnp.mean(accept_prob))


def z_scores(ranks):
    """Mean and variance of the ranks, in standard errors from those of a uniform."""
    u = (ranks + 0.5) / (DRAWS + 1)
    n, levels = len(u), DRAWS + 1
    variance = (1 - 1 / levels**2) / 12
    centred = u - 0.5
    # the fourth central moment of a uniform is 1 / 80
    return np.concatenate(
        [
            centred.mean(0) / np.sqrt(variance / n),
            ((centred**2).mean(0) - variance) / np.sqrt((1 / 80 - variance**2) / n),
        ]
    )


@pytest.mark.slow
def test_ranks_are_uniform():
    rank, accept_prob = ranks()
    assert 0.6 < accept_prob < 0.999  # the Metropolis test has something to do
    # ten scores: a right sampler exceeds 4 once in 1,600 seeds
    assert np.abs(z_scores(rank)).max() < 4
    counts = np.stack([np.bincount(r // 8, minlength=8) for r in rank.T])
    chi_square = ((counts - REPLICATIONS / 8) ** 2 / (REPLICATIONS / 8)).sum(1)
    assert chi_square.max() < 29.9  # of 7 degrees of freedom: p = 1e-4


@pytest.mark.slow
def test_standard_deviations_ten_percent_too_large_are_noticed():
    rank, _ = ranks(temperature=1.21)
    assert np.abs(z_scores(rank)).max() > 6


@pytest.mark.slow
def test_ignoring_the_data_is_noticed_and_by_the_likelihood_alone():
    rank, _ = ranks(uses_data=False)
    scores = np.abs(z_scores(rank)).reshape(2, 5)
    assert scores[:, 4].max() > 6
    assert scores[:, :4].max() < 4
