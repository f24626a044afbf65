"""`ppl_bnn.ReplicaExchangeSGLD` on a model with two modes."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import ppl_bnn

N, NOISE = 60, 1.5
Y = np.random.default_rng(0).normal(1.0, NOISE, size=N).astype(np.float32)
Y += 1 - Y.mean()


def two_modes(y):
    """Only the square of w is observed: modes at plus and minus one, and a barrier of 13."""
    w = numpyro.sample("w", dist.Normal(0, 2.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w**2, NOISE), obs=y)


def true_moments():
    """Mean and mean square of w^2."""
    w = np.linspace(0, 4, 4001)
    log_density = -0.5 * (w / 2) ** 2 - 0.5 * ((Y[:, None] - w**2) ** 2).sum(0) / NOISE**2
    weights = np.exp(log_density - log_density.max())
    return [(weights * w ** (2 * k)).sum() / weights.sum() for k in (1, 2)]


def run(kernel, num_warmup=50, num_samples=500, num_chains=16):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = {"w": np.ones(num_chains, np.float32)}  # all in one of the modes
    mcmc.run(jax.random.key(0), Y, init_params=start)
    return mcmc


OPTIONS = {"step_size": 1e-3, "batch_size": 30, "steps_per_draw": 100}
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0)


@pytest.mark.slow
def test_both_modes_in_their_proportions_and_the_right_shape():
    mcmc = run(ppl_bnn.ReplicaExchangeSGLD(two_modes, temperatures=TEMPERATURES, **OPTIONS))
    w = np.asarray(mcmc.get_samples(group_by_chain=True)["w"], float)
    # half of the time in each; chains are independent, so their means tell the error
    shares = (w > 0).mean(axis=1)
    error = shares.std(ddof=1) / np.sqrt(len(shares))
    assert error < 0.1 and abs(shares.mean() - 0.5) < 4 * error
    for power, expected in zip((w**2, w**4), true_moments(), strict=True):
        means = power.mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert abs(means.mean() - expected) < 4 * error + 0.02 * expected
    fields = mcmc.get_extra_fields()
    assert (np.asarray(fields["info.swap_rate"]).mean(axis=0) > 0.01).all()
    noise = np.asarray(fields["info.noise_variance"]).reshape(16, -1, 4)
    assert (noise > 0).all() and (noise == noise[:, :1]).all()  # frozen after warm-up

    alone = run(ppl_bnn.SGLD(two_modes, **OPTIONS))
    assert (np.asarray(alone.get_samples()["w"]) > 0).all()


def test_swaps_that_take_no_account_of_their_noise_are_too_many():
    def swap_rate(swap_noise):
        kernel = ppl_bnn.ReplicaExchangeSGLD(
            two_modes, temperatures=(1.0, 4.0), swap_noise=swap_noise, **OPTIONS
        )
        return np.asarray(run(kernel, 5, 20, 4).get_extra_fields()["info.swap_rate"]).mean()

    assert swap_rate(None) < 0.8 * swap_rate(0.0)


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["without_replacement", "epochs"])
def test_swaps_by_all_rows_have_no_noise(batching):
    options = OPTIONS | {"batch_size": N, "steps_per_draw": 10, "batching": batching}
    kernel = ppl_bnn.ReplicaExchangeSGLD(two_modes, temperatures=TEMPERATURES, **options)
    noise = run(kernel, 10, 10, num_chains=2).get_extra_fields()["info.noise_variance"]
    assert np.max(noise) < 1e-6


def test_swap_interval():
    kernel = ppl_bnn.ReplicaExchangeSGLD(
        two_modes, temperatures=(1.0, 1.01), swap_interval=4, swap_noise=0.0, **OPTIONS
    )
    rate = np.asarray(run(kernel, 5, 20, 4).get_extra_fields()["info.swap_rate"]).mean()
    assert 0.2 < rate <= 0.25 + 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperatures": (1.0,)}, "at least two, ascending from 1"),
        ({"temperatures": (2.0, 4.0)}, "ascending from 1"),
        ({"temperatures": (1.0, 4.0, 2.0)}, "ascending from 1"),
        ({"temperatures": (1.0, np.inf)}, "must be finite"),
        ({"swap_interval": 0}, "`swap_interval` must be an integer"),
        ({"swap_noise": -1.0}, "`swap_noise` is a variance"),
        ({"correction": 0.5}, "`correction` must be at least 1"),
        ({"temperature": 0.0}, "need a `temperature` above 0"),
        ({"step_size": ppl_bnn.schedules.cyclical(0.1, 10)}, "no cyclical step size"),
    ],
)
def test_bad_options(options, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        ppl_bnn.ReplicaExchangeSGLD(two_modes, **{"temperatures": (1.0, 2.0)} | OPTIONS | options)


def test_without_warmup_the_noise_is_not_known():
    kernel = ppl_bnn.ReplicaExchangeSGLD(two_modes, temperatures=(1.0, 2.0), **OPTIONS)
    with pytest.raises(ValueError, match="measured during warm-up, and `num_warmup` is 0"):
        run(kernel, num_warmup=0)
