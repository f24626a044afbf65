"""`ppl_bnn.fit`: minibatches, schedules, devices, resumption, failures, what it gives back."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.inference import fitting_loop

N, K, NOISE, PRIOR = 21, 3, 0.5, 0.4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (X @ np.array([1.3, 0.8]) + NOISE * RNG.normal(size=N)).astype(np.float32)
DATA = X, Y
STILL = optax.set_to_zero()


def model(x, y=None):
    """A linear regression whose coefficients are factors; the bias is a point."""
    r = numpyro.sample("net.r", dist.Normal(1.0, PRIOR).expand([2]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal((x * r).sum(-1) + bias, NOISE), obs=y)


points = partial(ppl_bnn.AutoRank1, model, num_components=K, family="delta")
normals = partial(ppl_bnn.AutoRank1, model, num_components=K)
fit = partial(ppl_bnn.fit, model, batch_size=5, progress_bar=False)


def full_loss(result):
    """Of members that are points, over all rows, for each of them."""
    r, b = (np.asarray(result.params[n], float) for n in ("net.r_auto_loc", "bias_auto_point"))
    log = lambda value, sd: -0.5 * (value / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))  # noqa: E731
    likelihood = log(Y[:, None] - X @ r.T - b, NOISE).mean(1).sum()
    return -(likelihood + log(r - 1, PRIOR).sum(1).mean() + log(b, 1.0)) / N


@pytest.mark.parametrize("assignment", ["tiled", "split", "sampled"])
def test_epochs_see_each_row_once_and_the_loss_is_that_of_all_rows(assignment):
    seen = []

    def fetch(index):
        seen.append(index)
        return X[index], Y[index]

    source = ppl_bnn.RowSource(fetch, N)
    seen.clear()
    objective = ppl_bnn.Rank1ELBO(assignment=assignment)
    num_epochs = 1 if assignment == "tiled" else 400
    result = fit(
        points(),
        source,
        batch_size=3,
        num_epochs=num_epochs,
        optimizer=STILL,
        objective=objective,
    )
    read = np.concatenate(seen[1:]).reshape(-1, N)  # the first is the look at the source
    assert len(read) == num_epochs and (np.sort(read, axis=1) == np.arange(N)).all()
    assert num_epochs == 1 or (read[0] != read[1]).any()
    epochs = result.losses.reshape(num_epochs, -1).mean(axis=1)
    error = epochs.std() / np.sqrt(num_epochs)  # none where every component sees every row
    assert len(set(result.losses)) > 1
    assert abs(epochs.mean() - full_loss(result)) < 4 * error + 1e-5 * abs(epochs.mean())
    assert error < 0.05 * abs(epochs.mean())


def test_batches_go_on_across_the_ends_of_epochs():
    result = fit(points(), DATA, num_epochs=2, optimizer=STILL)
    assert len(result.losses) == 9  # 42 rows in fives
    assert result.validation.shape == (0, 2)
    with pytest.raises(ValueError, match="nothing tells which parameters are best"):
        result.best  # noqa: B018


@pytest.mark.parametrize("kind", ["rank-1", "mean field", "one vector"])
def test_the_schedule_weighs_divergences_and_nothing_else(kind):
    guide, objective = {
        "rank-1": lambda: (normals(), ppl_bnn.Rank1ELBO()),
        "mean field": lambda: (AutoNormal(model), TraceMeanField_ELBO()),
        "one vector": lambda: (AutoDiagonalNormal(model), Trace_ELBO()),
    }[kind]()

    def losses(weight):
        run = fit(
            guide,
            DATA,
            num_epochs=1,
            optimizer=STILL,
            objective=objective,
            kl_schedule=weight,
        )
        return run.losses, run

    full, result = losses(None)
    steps = np.arange(len(full))
    ramp, _ = losses(optax.linear_schedule(0.0, 1.0, 4))
    none, _ = losses(0.0)
    weight = np.minimum(steps / 4, 1)
    np.testing.assert_allclose(ramp, none + weight * (full - none), rtol=1e-5)
    if kind == "one vector":
        return
    if kind == "rank-1":
        loc, scale = (np.asarray(result.params[f"net.r_auto_{n}"], float) for n in ("loc", "scale"))
        divergence = np.log(PRIOR / scale) + (scale**2 + (loc - 1) ** 2) / (2 * PRIOR**2) - 0.5
        expected = divergence.sum(1).mean()  # the point keeps its prior
    else:
        expected = 0.0
        for name, mean, sd in (("net.r", 1.0, PRIOR), ("bias", 0.0, 1.0)):
            loc, scale = (
                np.asarray(result.params[f"{name}_auto_{n}"], float) for n in ("loc", "scale")
            )
            each = np.log(sd / scale) + (scale**2 + (loc - mean) ** 2) / (2 * sd**2) - 0.5
            expected += each.sum()
    np.testing.assert_allclose((full - none) * N, expected, rtol=1e-4)


def test_four_devices_take_the_steps_of_one():
    run = partial(fit, normals(), DATA, batch_size=8, num_epochs=4, optimizer=optax.adam(0.05))
    one, four = run(), run(mesh=ppl_bnn.mesh(data=4))
    np.testing.assert_allclose(four.losses, one.losses, rtol=1e-4)
    for name in one.params:
        np.testing.assert_allclose(four.params[name], one.params[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="does not divide among the 3 devices"):
        run(mesh=ppl_bnn.mesh(data=3))


def test_devices_meet_once_a_step(monkeypatch):
    texts = []
    take = fitting_loop.Loop._take

    def compile_first(self):
        if not texts:
            placed = self._place(self.batch)
            texts.append(self.step.lower(self.state, self.rng_key, placed).compile().as_text())
        take(self)

    monkeypatch.setattr(fitting_loop.Loop, "_take", compile_first)
    guide = ppl_bnn.AutoRank1(network, num_components=K)
    options = {"batch_size": 8, "num_epochs": 1, "progress_bar": False}
    ppl_bnn.fit(network, guide, DATA, mesh=ppl_bnn.mesh(data=4), **options)
    words = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)\("
    assert re.findall(words, texts[0]) == ["all-reduce"]


def unreliable(fails_after):
    """Rows that can be read so often."""
    reads = []

    def fetch(index):
        reads.append(index)
        if len(reads) > fails_after:
            raise OSError("the disk is gone")
        return X[index], Y[index]

    return ppl_bnn.RowSource(fetch, N)


def test_a_fit_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    options = {"optimizer": optax.adam(0.05), "validation": DATA, "num_epochs": 3}
    whole = fit(normals(), unreliable(1000), **options)
    folder = tmp_path / "fit"
    with pytest.warns(RuntimeWarning, match=r"stops after 6 steps.*OSError: the disk is gone"):
        part = fit(normals(), unreliable(2 + 6), checkpoint=folder, **options)
    np.testing.assert_array_equal(part.losses, whole.losses[:6])
    assert "the disk is gone" in part.stopped and "stopped early" in repr(part)
    assert whole.stopped is None
    rest = fit(normals(), unreliable(1000), checkpoint=folder, **options)
    np.testing.assert_array_equal(rest.losses, whole.losses)
    np.testing.assert_array_equal(rest.validation, whole.validation)
    for name in whole.params:
        np.testing.assert_array_equal(rest.params[name], whole.params[name])
        np.testing.assert_array_equal(rest.best.params[name], whole.best.params[name])
    again = fit(normals(), unreliable(2), checkpoint=folder, **options)  # nothing is left to do
    np.testing.assert_array_equal(again.losses, whole.losses)
    more = fit(normals(), unreliable(1000), checkpoint=folder, **options | {"num_epochs": 4})
    np.testing.assert_array_equal(more.losses[: len(whole.losses)], whole.losses)
    assert len(more.validation) == 4
    for change, word in (
        ({"optimizer": optax.adam(0.1)}, "optimizer"),
        ({"kl_schedule": 0.5}, "kl_schedule"),
        ({"objective": ppl_bnn.Rank1ELBO(tied_mean=True)}, "objective"),
        ({"batch_size": 7}, "batch_size"),
    ):
        with pytest.raises(ValueError, match=f"which holds a fit with another {word}:"):
            fit(normals(), unreliable(1000), checkpoint=folder, **options | change)


SCRIPT = """
    import os, signal, sys, numpy as np, optax, ppl_bnn
    sys.path.insert(0, {folder!r})
    from test_fit import N, X, Y, normals, model

    class Kill:
        count = 0
    def fetch(index):
        Kill.count += 1
        if Kill.count == 40:
            os.kill(os.getpid(), signal.{signal})
        return X[index], Y[index]

    result = ppl_bnn.fit(
        model, normals(), ppl_bnn.RowSource(fetch, N), batch_size=5, num_epochs=20,
        optimizer=optax.adam(0.05), checkpoint=sys.argv[1], progress_bar=False)
    print(len(result.losses))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_killed(tmp_path, name):
    """Ctrl-C gives what there is; after SIGKILL the last checkpoint is there."""
    text = textwrap.dedent(SCRIPT).format(folder=os.path.dirname(__file__), signal=name)
    run = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path / "fit")], capture_output=True, text=True
    )
    if name == "SIGKILL":
        assert run.returncode == -signal.SIGKILL
    else:
        assert run.returncode == 0, run.stderr
        assert "stops after 38 steps, before the end: it was interrupted" in run.stderr
        assert run.stdout.split()[-1] == "38"
    source = ppl_bnn.RowSource(lambda index: (X[index], Y[index]), N)
    options = {"num_epochs": 20, "optimizer": optax.adam(0.05)}
    rest = fit(normals(), source, checkpoint=tmp_path / "fit", **options)
    whole = fit(normals(), source, **options)
    np.testing.assert_array_equal(rest.losses, whole.losses)


def test_a_step_that_is_not_finite_is_not_taken():
    heavy = ppl_bnn.AutoRank1(model, num_components=1, init_scale=0.1)
    rows = np.concatenate([X, X])
    rows[30] = 1e25  # finite, and its square is not
    y = np.concatenate([Y, Y])
    options = {"num_epochs": 1, "optimizer": optax.adam(0.01), "rng_key": jax.random.key(3)}
    with pytest.warns(RuntimeWarning, match=r"step \d+ would give .* not finite at the sites \['y"):
        result = fit(heavy, (rows, y), **options)
    assert 0 < result.failed_at == len(result.losses)
    assert all(np.isfinite(value).all() for value in result.params.values())
    assert np.isfinite(result.losses).all()
    assert "failed at step" in repr(result)


@pytest.mark.parametrize("clip", [None, 10.0])
def test_heavy_tails_end_a_fit_unless_they_are_clipped(clip):
    heavy = dist.Cauchy(1.0, 0.1)
    prior = {"*.r": heavy, "*.s": heavy, "*": priors.fan_in_normal()}
    net = models.rank1(models.MLP(2, (8,), 1), clip=clip)
    wild = models.regression(net, prior, noise=NOISE)
    options = {"num_components": 2, "family": "cauchy", "scale": "fixed", "init_scale": 1e4}
    guide = ppl_bnn.AutoRank1(wild, **options)
    run = partial(ppl_bnn.fit, wild, guide, DATA, batch_size=7, num_epochs=100, progress_bar=False)
    if clip:
        result = run()
        assert len(result.losses) == 300 and np.isfinite(result.losses).all()
        return
    with pytest.warns(
        RuntimeWarning, match=r"step \d+ would .* largest draw is .*e\+\d+, of 'net/"
    ):
        result = run()
    assert 0 < result.failed_at == len(result.losses) < 300
    assert all(np.isfinite(value).all() for value in result.params.values())


def test_a_start_that_is_not_finite_is_refused():
    with pytest.raises(
        ValueError, match=r"cannot start.*not finite at the sites \['y'\].*largest draw"
    ):
        fit(normals(), (1e25 * X, Y), num_epochs=1)


def test_an_update_that_is_not_finite_names_the_parameters():
    def rooted(x, y=None):
        r = numpyro.sample("net.r", dist.Normal(1.0, PRIOR).expand([2]).to_event(1))
        r = r + 0 * jnp.sqrt(jnp.maximum(r - 1e9, 0.0))  # whose slope is 0 times infinity
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((x * r).sum(-1), NOISE), obs=y)

    guide = ppl_bnn.AutoRank1(rooted, num_components=K)
    with pytest.raises(ValueError, match=r"gradient is not finite for \['net\.r_auto_loc"):
        ppl_bnn.fit(rooted, guide, DATA, batch_size=5, num_epochs=1, progress_bar=False)


def test_validation_tells_the_best_epoch():
    """Far too large steps at first: the start is never returned to, the best epoch is kept."""
    optimizer = optax.sgd(optax.exponential_decay(2.0, 5, 0.2))
    result = fit(points(), DATA, num_epochs=6, optimizer=optimizer, validation=DATA)
    assert result.validation[:, 0].tolist() == [5, 9, 13, 17, 21, 26]
    best = result.validation[:, 1].argmin()
    found = -ppl_bnn.predict(result.best, X).log_prob(Y).mean()
    assert found == pytest.approx(result.validation[best, 1], rel=1e-5)
    last = -ppl_bnn.predict(result, X).log_prob(Y).mean()
    assert last == pytest.approx(result.validation[-1, 1], rel=1e-5)


def test_batches_from_an_iterable():
    batches = [(X[i : i + 5], Y[i : i + 5]) for i in range(0, N, 5)]  # the last holds one row
    run = partial(ppl_bnn.fit, model, points(), progress_bar=False, num_rows=N, optimizer=STILL)
    result = run(batches, num_epochs=2)
    assert len(result.losses) == 10
    np.testing.assert_array_equal(result.losses[:5], result.losses[5:])
    weighted = np.average(result.losses[:5], weights=[5, 5, 5, 5, 1])
    assert weighted == pytest.approx(full_loss(result), rel=1e-5)
    named = ({"x": x, "y": y} for x, y in batches)
    once = run(named, num_epochs=1)
    np.testing.assert_allclose(once.losses, result.losses[:5], rtol=1e-6)
    with pytest.warns(RuntimeWarning, match="there were no more batches"):
        run(iter(batches), num_epochs=2)
    with pytest.raises(ValueError, match="give `num_rows`"):
        ppl_bnn.fit(model, points(), batches, num_epochs=1)
    with pytest.warns(RuntimeWarning, match="each batch of `data` must be the model's arguments"):
        run([*batches[:2], 3], num_epochs=1)
    run(batches[:-1], num_epochs=1)  # a last batch that is not full may be dropped
    with pytest.warns(RuntimeWarning, match=rf"gave {N} rows, and `num_rows`.* is {2 * N}"):
        run(batches, num_epochs=1, num_rows=2 * N)


def test_words_name_what_was_given(tmp_path):
    for name, options in {
        "data": {"data": (X, Y[:-1])},
        "validation": {"validation": (X, Y[:-1])},
    }.items():
        with pytest.raises(ValueError, match=f"the arrays of `{name}` have"):
            fit(points(), num_epochs=1, **({"data": DATA} | options))
    with pytest.raises(ValueError, match=r"took 1 steps and validated none"):
        with pytest.warns(RuntimeWarning, match="stops after 1 steps"):
            stopped = fit(points(), unreliable(2 + 1), validation=DATA, num_epochs=1)
        _ = stopped.best
    run = partial(fit, normals(), checkpoint=tmp_path / "fit")
    run(DATA, num_epochs=2)
    with pytest.warns(RuntimeWarning, match="holds a fit of 2 epochs, more than num_epochs=1"):
        assert len(run(DATA, num_epochs=1).losses) == 9
    with pytest.raises(ValueError, match="holds a fit with another rng_key:"):
        run(DATA, num_epochs=2, rng_key=jax.random.key(7))


NEAR_ONE = {"*.r": dist.Normal(1, 0.1), "*.s": dist.Normal(1, 0.1), "*": priors.fan_in_normal()}
network = models.regression(models.rank1(models.MLP(2, (8,), 1)), NEAR_ONE, noise=NOISE)


def test_networks_compute_in_few_bits():
    guide = ppl_bnn.AutoRank1(network, num_components=2, family="delta")
    run = partial(ppl_bnn.fit, network, guide, DATA, batch_size=5, num_epochs=1, progress_bar=False)
    exact, rounded = run(optimizer=STILL), run(optimizer=STILL, compute_dtype=jnp.bfloat16)
    assert (exact.losses != rounded.losses).any()
    np.testing.assert_allclose(rounded.losses, exact.losses, rtol=0.03)
    trained = run(compute_dtype=jnp.bfloat16)
    assert {value.dtype for value in trained.params.values()} == {jnp.dtype("float32")}


def test_what_a_fit_gives_to_predict_and_function_space():
    guide = ppl_bnn.AutoRank1(network, num_components=K)
    run = partial(ppl_bnn.fit, network, guide, DATA, batch_size=5, progress_bar=False)
    result = run(num_epochs=1)
    draws = result.draws(4)
    assert draws.samples["net/layers.0.r"].shape == (K, 4, 8)
    assert draws.shared["net/layers.0.layer.kernel"].shape == (2, 8)
    prediction = ppl_bnn.predict(draws, X, return_draws=True)
    assert prediction.draws.shape == (K, 4, N)
    # the same as if every draw had weights of its own
    whole = guide.sample_posterior(result._rng_key, result.params, 4)
    apart = ppl_bnn.predict(whole, X, model=network, group_by_chain=True)
    np.testing.assert_allclose(prediction.mean, apart.mean, rtol=1e-5, atol=1e-6)
    functions = ppl_bnn.function_space(draws, X)
    assert functions["posterior"]["mean"].shape == (K, 4, N)
    for judge in (lambda: ppl_bnn.rhat(functions), lambda: ppl_bnn.diagnose(result, X)):
        with pytest.raises(ValueError, match="components of a fit"):
            judge()
    assert ppl_bnn.predict(result, X, return_draws=True).draws.shape == (K, 25, N)
    other = run(num_epochs=1, rng_key=jax.random.key(1))
    both = ppl_bnn.predict([result, other], X, return_draws=True)
    assert both.draws.shape == (2 * K, 25, N)
    alone = ppl_bnn.predict(other, X, return_draws=True).draws
    np.testing.assert_allclose(both.draws[K:], alone, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"have \[2, 4\] draws"):
        ppl_bnn.predict([result.draws(2), draws], X)


def test_guides_of_numpyro():
    for guide, num_draws in ((AutoNormal(model), 25), (AutoDelta(model), 1)):
        result = fit(guide, DATA, num_epochs=2)
        prediction = ppl_bnn.predict(result, X, return_draws=True)
        assert prediction.draws.shape == (1, num_draws, N)


def test_parameters_of_the_model():
    def own(x, y=None):
        noise = numpyro.param("noise", 3.0, constraint=dist.constraints.positive)
        r = numpyro.sample("net.r", dist.Normal(1.0, PRIOR).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((x * r).sum(-1), noise), obs=y)

    guide = ppl_bnn.AutoRank1(own, num_components=1)
    options = {"optimizer": optax.adam(0.05), "validation": DATA, "progress_bar": False}
    result = ppl_bnn.fit(own, guide, DATA, batch_size=7, num_epochs=40, **options)
    noise = float(result.params["noise"])
    assert 0.3 < noise < 0.9
    prediction = ppl_bnn.predict(result, X)
    np.testing.assert_allclose(prediction.aleatoric_variance, noise**2, rtol=1e-5)
    found = -ppl_bnn.predict(result.draws(4), X).log_prob(Y).mean()
    assert result.validation[-1, 1] == pytest.approx(found, rel=1e-5)


def test_checkpoints_are_not_taken_all_the_time(tmp_path, monkeypatch):
    saved = []
    keep = fitting_loop.Loop._keep

    def count(self):
        saved.append(self.num_steps)
        keep(self)

    monkeypatch.setattr(fitting_loop.Loop, "_keep", count)
    fit(points(), DATA, num_epochs=20, checkpoint=tmp_path / "fit")
    assert saved == [5, 84]
    saved.clear()
    monkeypatch.setattr(fitting_loop, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    fit(points(), DATA, num_epochs=3, checkpoint=tmp_path / "other")
    assert saved == [5, 9, 13, 13]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_epochs": 0}, "`num_epochs` must be"),
        ({"batch_size": 22}, "`batch_size` is 22, but there are 21 rows"),
        ({"batch_size": None}, "`batch_size` says how many rows"),
        ({"num_rows": 21}, "`num_rows` is known"),
        ({"kl_schedule": -1.0}, "`kl_schedule` must be"),
        ({"compute_dtype": jnp.int32}, "`compute_dtype` must be"),
        ({"data": X}, "`data` must be the model's arguments"),
        ({"data": (X, Y[:-1])}, r"have \[21, 20\] rows"),
        ({"data": (X, np.where(Y > 0, Y, np.nan))}, "`y` has"),
        ({"validation": (X, Y[:, None])}, "observed value"),
        ({"objective": ppl_bnn.Rank1ELBO(assignment="split")}, "does not divide among 3"),
        ({"guide": ppl_bnn.AutoRank1(model, factors=("w",))}, r"no site of the model fits `fact"),
    ],
)
def test_bad_input(options, message, as_users_run):
    given = {"guide": points(), "data": DATA, "batch_size": 5, "num_epochs": 1} | options
    with pytest.raises(ValueError, match=message):
        ppl_bnn.fit(model, given.pop("guide"), given.pop("data"), progress_bar=False, **given)
