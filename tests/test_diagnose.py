import dataclasses

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from ppl_bnn.diagnose import diagnose
from ppl_bnn.draws import Draws

X = np.linspace(-2, 2, 21)


def model(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x, 0.5), obs=y)


def run(num_chains=4, num_draws=500, shift=0.0, **stats):
    """Independent draws; the last chain is shifted."""
    slopes = np.random.default_rng(0).normal(size=(num_chains, num_draws))
    slopes[-1] += shift
    full = {
        "diverging": np.zeros(slopes.shape, bool),
        "energy": np.random.default_rng(1).normal(size=slopes.shape),
        "accept_prob": np.full(slopes.shape, 0.8),
        "failed_at": np.full(slopes.shape, -1),
        "metropolis": np.ones(slopes.shape, bool),
    }
    return Draws(samples={"slope": slopes}, model=model, stats=full | stats)


def test_good_run():
    result = diagnose(run(num_draws=2000), X)
    assert result.verdict.startswith("No sign of disagreement")
    assert result.advice == []
    assert result.rhat.share_below(1.01) == 1.0
    # The slope times 0, and a noise scale that is given, are constant.
    assert result.rhat.num_constant == 2
    assert len(result.ess_bulk) == 20
    np.testing.assert_allclose(result.ess_bulk, 8000, rtol=0.2)
    assert result.num_divergences == 0 and result.stuck_chains == []
    np.testing.assert_allclose(result.acceptance, 0.8)
    assert (result.bfmi > 1).all()
    text = str(result)
    for words in ("ArviZ", "21 points, 4 chains x 2000 draws", "2 constant", "0 divergent"):
        assert words in text


def test_few_draws_are_told_from_disagreement():
    result = diagnose(run(num_draws=20), X)
    assert 1.01 < result.rhat.max < 1.1
    assert "as far as so few draws can show" in result.verdict
    assert "push R-hat above 1 by themselves" in str(result)
    assert any("times as many draws" in advice for advice in result.advice)
    assert 1.05 < result.rhat_of_agreeing_chains < 1.15


@pytest.mark.parametrize(("num_draws", "correlation"), [(50, 0.0), (400, 0.8)])
def test_rhat_of_agreeing_chains(num_draws, correlation):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, num_draws, 300))
    chains = [noise[:, 0]]
    for step in noise[:, 1:].swapaxes(0, 1):
        chains.append(correlation * chains[-1] + np.sqrt(1 - correlation**2) * step)
    draws = Draws(samples={"slope": np.stack(chains, axis=1)}, model=many_slopes)
    result = diagnose(draws, np.ones(1))
    # 95 %, with a standard error of 1.3 % over 300 independent quantities.
    assert 0.91 < result.rhat.share_below(result.rhat_of_agreeing_chains) < 0.99


def many_slopes(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([300]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x[:, None], 1.0).to_event(1), obs=y)


def test_disagreeing_chains():
    result = diagnose(run(shift=3.0), X)
    assert result.verdict.startswith("Not converged: R-hat is 1.1 or more for 100.0%")
    assert any("longer warm-up" in advice for advice in result.advice)
    assert result.worst[0][0].startswith("mean at point ") and result.worst[0][1] > 1.1


def test_one_chain():
    result = diagnose(run(num_chains=1), X)
    assert result.verdict.startswith("Cannot be judged from one chain: it shows no strong drift")
    assert any("at least 4 chains" in advice for advice in result.advice)
    drifting = Draws(samples={"slope": np.linspace(0, 1, 200)[None]}, model=model)
    assert "it drifts" in diagnose(drifting, X).verdict


def test_frozen_chain():
    failed_at = np.full((4, 500), -1)
    failed_at[2, 300:] = 300
    result = diagnose(run(failed_at=failed_at), X)
    assert result.verdict == "Not usable: chains [2] are stuck and do not sample."
    assert "{2: 300}" in str(result)


def test_stuck_chain_without_statistics():
    draws = run()
    draws.samples["slope"][1] = 0.3
    result = diagnose(dataclasses.replace(draws, stats={}), X)
    assert result.stuck_chains == [1] and "stuck" in result.verdict
    assert "Not recorded: accept_prob, energy" in str(result)


def test_sampler_trouble():
    shape = (4, 500)
    diverging = np.arange(2000).reshape(shape) % 400 == 0
    energy = np.cumsum(np.random.default_rng(0).normal(size=shape), axis=1)
    result = diagnose(
        run(
            diverging=diverging,
            energy=energy,
            accept_prob=np.full(shape, 0.2),
            metropolis=np.zeros(shape, bool),
        ),
        X,
    )
    assert result.num_divergences == 5 and result.num_without_metropolis == 2000
    assert (result.bfmi < 0.3).all()
    advice = " | ".join(result.advice)
    for words in ("target_accept_prob", "mostly rejected", "E-BFMI below", "metropolis=True"):
        assert words in advice
    assert "2000 draws passed no Metropolis test" in str(result)


def test_stochastic_gradients():
    shape = (4, 500)
    draws = run()
    own = {"is_kept": np.ones(shape, bool), "info.swap_rate": np.zeros((*shape, 2))}
    result = diagnose(dataclasses.replace(draws, stats=own), X)
    assert result.num_without_metropolis == 2000
    text = str(result)
    assert "2000 draws passed no Metropolis test: the size of the steps" in text
    assert "by pair of neighbouring replicas: 0.0e+00 0.0e+00" in text and "hardly swap" in text
    assert "half the `step_size`" in text
    assert "Not recorded" not in text and "metropolis=True" not in text


def test_constant_energy_gives_no_warning():
    result = diagnose(run(energy=np.ones((4, 500))), X)
    assert np.isnan(result.bfmi).all()


def test_infinite_predictions():
    draws = run()
    draws.samples["slope"][0, 0] = np.inf
    result = diagnose(draws, X)
    assert result.verdict.startswith("Not usable: 21 predictions are NaN or infinite")
    assert any("overflow" in advice for advice in result.advice)


def test_all_constant_and_too_few():
    draws = run()
    draws.samples["slope"][:] = 1.0
    assert "every prediction is the same" in diagnose(draws, X).verdict
    assert "3 draws a chain are too few" in diagnose(run(num_draws=3), X).verdict
    assert str(diagnose(run(num_draws=3), X))


def test_many_points_are_thinned_and_named_by_their_row():
    x = np.zeros(1000)
    x[999] = 1.0
    result = diagnose(run(), x, max_points=3)
    assert result.num_points == 3
    assert [name for name, _ in result.worst] == ["mean at point 999"]
    with pytest.raises(ValueError, match="`max_points` must be at least 1, got 0"):
        diagnose(run(), x, max_points=0)
