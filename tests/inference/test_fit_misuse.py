"""What goes wrong with `ppl_bnn.fit`, and what it says: other data and models, broken folders."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoLaplaceApproximation, AutoNormal

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.inference import fitting_result, fitting_score

N = 12
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = X.sum(1)
ADAM = optax.adam(0.01)


def model(x, y=None):
    r = numpyro.sample("net.r", dist.Normal(1.0, 0.4).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal((x * r).sum(-1), 0.5), obs=y)


def fit(model=model, guide=None, data=(X, Y), **options):
    guide = ppl_bnn.AutoRank1(model, num_components=2) if guide is None else guide
    given = {"batch_size": 4, "num_epochs": 1, "progress_bar": False} | options
    return ppl_bnn.fit(model, guide, data, **given)


class Frame(np.ndarray):
    """Of labelled rows, as pandas has them."""

    def to_numpy(self):
        return np.asarray(self)


def test_labelled_rows_are_refused():
    labelled = Y.view(Frame)
    with pytest.raises(ValueError, match=r"got tuple of \(ndarray, Frame\).*to_numpy"):
        fit(data=(X, labelled))
    with pytest.raises(ValueError, match=r"got tuple of \(ndarray, list\)"):
        fit(data=(X, list(Y)))


def test_the_schedule_reaches_the_objectives_of_numpyro():
    """Also where they are given an AutoRank1."""
    run = partial(fit, optimizer=optax.set_to_zero(), objective=TraceMeanField_ELBO())
    none, half, full = (run(kl_schedule=weight).losses for weight in (0.0, 0.5, 1.0))
    assert (np.abs(full - none) > 1e-3).all()
    np.testing.assert_allclose(half, (none + full) / 2, rtol=1e-5)


@pytest.mark.parametrize("kind", ["plate", "batch", "event"])
def test_the_divergence_of_a_site_does_not_depend_on_how_it_is_written(kind):
    def written(x, y=None):
        if kind == "plate":
            with numpyro.plate("features", 2):
                r = numpyro.sample("net.r", dist.Normal(1.0, 0.4))
        else:
            law = dist.Normal(1.0, 0.4).expand([2])
            r = numpyro.sample("net.r", law.to_event(1) if kind == "event" else law)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((x * r).sum(-1), 0.5), obs=y)

    guide = ppl_bnn.AutoRank1(written, num_components=2)
    loc, scale = jnp.array([[1.1, 0.7], [0.9, 1.3]]), jnp.full((2, 2), 0.2)
    params = {"net.r_auto_loc": loc, "net.r_auto_scale": scale}
    key, args = jax.random.key(0), (params, written, guide, X, Y)
    with_kl, without = (ppl_bnn.Rank1ELBO(kl_weight=w).loss(key, *args) for w in (1.0, 0.0))
    expected = jnp.log(0.4 / scale) + (scale**2 + (loc - 1) ** 2) / (2 * 0.4**2) - 0.5
    assert with_kl - without == pytest.approx(float(expected.sum(1).mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("perturbation", "middle"), [("multiplicative", 1), ("additive", 0), ("shift", 0)]
)
def test_factors_begin_where_the_network_is_what_it_was(perturbation, middle):
    net = models.rank1(models.MLP(2, (50,), 1), perturbation=perturbation)
    bnn = models.regression(net, priors.fan_in_normal(), noise=0.5)
    guide = ppl_bnn.AutoRank1(bnn, num_components=2, init_spread=0.1)
    params = fit(bnn, guide, optimizer=optax.set_to_zero()).params
    start = np.asarray(params["net/layers.0.r_auto_loc"])
    assert np.abs(start - middle).mean() < 0.2


def test_an_ensemble_is_of_one_model():
    def member(activation, seed):
        net = models.MLP(2, (4,), 1, activation=activation, rngs=nnx.Rngs(seed))
        bnn = models.regression(net, priors.fan_in_normal(), noise=0.5)
        guide = ppl_bnn.AutoRank1(bnn, num_components=1, factors=())
        return fit(bnn, guide)

    tanh, other_start, relu = member("tanh", 0), member("tanh", 1), member("relu", 0)
    prediction = ppl_bnn.predict([tanh, other_start], X, return_draws=True)
    alone = ppl_bnn.predict(other_start, X).mean
    np.testing.assert_allclose(prediction.draws[1, 0], alone, rtol=1e-4, atol=1e-5)
    assert np.abs(prediction.draws[0] - prediction.draws[1]).max() > 1e-3
    with pytest.raises(ValueError, match="of different models"):
        ppl_bnn.predict([tanh, relu], X)


def test_members_keep_parameters_of_their_models():
    def own(x, y=None):
        noise = numpyro.param("noise", 3.0, constraint=dist.constraints.positive)
        r = numpyro.sample("net.r", dist.Normal(1.0, 0.4).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((x * r).sum(-1), noise), obs=y)

    short, long = (
        fit(own, optimizer=optax.adam(0.1), num_epochs=n, rng_key=jax.random.key(1))
        for n in (1, 20)
    )
    noises = [float(result.params["noise"]) for result in (short, long)]
    assert abs(noises[0] - noises[1]) > 0.5
    for members in ([short, long], [long, short]):
        variance = ppl_bnn.predict(members, X).aleatoric_variance
        np.testing.assert_allclose(variance, np.mean(np.square(noises)), rtol=1e-5)


def test_guides_of_numpyro_are_compiled_once(monkeypatch):
    traced = []
    run = fitting_result.Sampler._run

    def count(self, *args):
        traced.append(args)
        return run(self, *args)

    monkeypatch.setattr(fitting_result.Sampler, "_run", count)
    guide = AutoDiagonalNormal(model)
    result = fit(guide=guide, objective=Trace_ELBO(), num_epochs=4, validation=(X, Y))
    assert len(result.validation) == 4 and len(traced) == 1


@pytest.mark.parametrize("make", [AutoNormal, ppl_bnn.AutoRank1])
def test_what_a_checkpoint_belongs_to(tmp_path, make):
    run = partial(fit, guide=make(model), checkpoint=tmp_path / "fit", num_epochs=2)
    first = run(optimizer=ADAM)
    again = run(optimizer=ADAM)
    np.testing.assert_array_equal(first.losses, again.losses)
    for change, word in (
        ({"validation": (X, Y)}, "validation"),
        ({"compute_dtype": jnp.bfloat16}, "compute_dtype"),
        ({"guide": ppl_bnn.AutoRank1(model, num_components=3)}, "guide"),
        ({"data": (X, Y + 1)}, "data"),
    ):
        with pytest.raises(ValueError, match=f"another .*{word}"):
            run(optimizer=ADAM, **change)


def test_other_networks_are_other_models(tmp_path):
    for hidden, activation in (((4,), "tanh"), ((4,), "relu"), ((8,), "tanh"), ((4, 4), "tanh")):
        bnn = models.regression(
            models.MLP(2, hidden, 1, activation=activation), priors.fan_in_normal()
        )
        run = partial(fit, bnn, ppl_bnn.AutoRank1(bnn, num_components=1, factors=()))
        if (hidden, activation) == ((4,), "tanh"):
            run(checkpoint=tmp_path / "fit")
            continue
        with pytest.raises(ValueError, match="holds a fit with another model"):
            run(checkpoint=tmp_path / "fit")


def test_folders_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ValueError, match="`checkpoint` must be a folder"):
            fit(checkpoint=folder)
    for folder in ("", 3):
        with pytest.raises(ValueError, match="`checkpoint` must be the path of a folder"):
            fit(checkpoint=folder)
    (tmp_path / "other" / "7").mkdir(parents=True)
    with pytest.raises(ValueError, match="cannot be read as a fit"):
        fit(checkpoint=tmp_path / "other")


def test_a_disk_that_fails_does_not_lose_the_fit(tmp_path, monkeypatch):
    def fail(self, saved):
        raise OSError("no space left")

    monkeypatch.setattr(ppl_bnn.inference.fitting_checkpoint.Checkpoints, "save", fail)
    with pytest.warns(RuntimeWarning, match=r"cannot be kept any more.*no space left"):
        result = fit(checkpoint=tmp_path / "fit")
    assert len(result.losses) == 3


@pytest.mark.parametrize("objective", ["average", "log_mixture"])
def test_rows_on_another_axis(objective):
    """Two outputs of a row, in a plate of their own or as one event, are one row."""

    def written(in_plates, x, y=None):
        r = numpyro.sample("net.r", dist.Normal(1.0, 0.4).expand([2]).to_event(1))
        mean = (x * r).sum(-1)[:, None] * jnp.array([1.0, 2.0])
        if not in_plates:
            with numpyro.plate("data", len(x)):
                numpyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)
            return
        with numpyro.plate("data", len(x), dim=-2), numpyro.plate("outputs", 2, dim=-1):
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    losses = [
        fit(
            partial(written, in_plates),
            ppl_bnn.AutoRank1(partial(written, in_plates), num_components=2, family="delta"),
            (X, np.stack([Y, 2 * Y], axis=1)),
            objective=ppl_bnn.Rank1ELBO(objective=objective),
        ).losses
        for in_plates in (True, False)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_rank1_layers_with_rows_on_another_axis():
    net = models.rank1(models.MLP(2, (4,), 2))

    def outputs(x, y=None):
        mean = ppl_bnn.random_module("net", net, priors.fan_in_normal())(x)
        with numpyro.plate("data", len(x), dim=-2), numpyro.plate("outputs", 2, dim=-1):
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    assert np.isfinite(fit(outputs, data=(X, np.stack([Y, Y], axis=1))).losses).all()


def test_an_argument_as_long_as_the_rows_looked_at_is_no_row():
    """A table of 16 entries beside a source of which 16 rows are looked at."""

    def with_table(x, y=None, table=None):
        r = numpyro.sample("net.r", dist.Normal(1.0, 0.4).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((x * r).sum(-1) + table.mean(), 0.5), obs=y)

    x, y = np.tile(X, (4, 1)), np.tile(Y, 4)
    losses = []
    for length in (15, 16, 17):
        source = ppl_bnn.RowSource(lambda index: {"x": x[index], "y": y[index]}, len(x))
        table = np.linspace(-1.0, 3.0, length, dtype=np.float32)  # its first rows are others
        losses.append(fit(with_table, None, source, model_kwargs={"table": table}).losses)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-5)


@pytest.mark.parametrize(
    "batch",
    [
        (X[4:8], Y[4:5]),
        (X[4:8], Y[4:8, None]),
        (X[4:8, :1], Y[4:8]),
        (X[:0], Y[:0]),
        {"x": X[4:8], "y": Y[4:8]},
    ],
)
def test_a_batch_that_is_not_like_the_first(batch):
    with pytest.warns(RuntimeWarning, match=r"stops after 1 steps.*a batch of `data` holds"):
        fit(data=[(X[:4], Y[:4]), batch], batch_size=None, num_rows=N)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guide": ppl_bnn.AutoRank1}, "`guide` must be a guide"),
        ({"objective": "elbo"}, "`objective` must be an ELBO"),
        ({"objective": Trace_ELBO}, "`objective` must be an ELBO"),
        ({"optimizer": numpyro.optim.Adam(0.1)}, "`optimizer` must be one of optax's"),
    ],
)
def test_what_is_no_part_of_a_fit(options, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        fit(**options)


def test_guides_of_other_models():
    def bigger(x, y=None):
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        r = numpyro.sample("net.r", dist.Normal(1.0, 0.4).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((x * r).sum(-1), noise), obs=y)

    small, large = (ppl_bnn.AutoRank1(m, num_components=1) for m in (model, bigger))
    with pytest.raises(ValueError, match=r"says nothing of the sites \['noise'\]"):
        fit(bigger, small)
    with pytest.raises(ValueError, match=r"the model does not have its sites \['noise'\]"):
        fit(model, large)

    narrow, wide = (
        models.regression(models.rank1(models.MLP(2, (n,), 1)), priors.fan_in_normal(), noise=0.5)
        for n in (4, 8)
    )
    with pytest.raises(ValueError) as caught:
        fit(wide, ppl_bnn.AutoRank1(narrow, num_components=1))
    assert "made for another function than `model`" in "".join(caught.value.__notes__)

    def discrete(x, y=None):
        numpyro.sample("k", dist.Bernoulli(0.5))
        model(x, y)

    with pytest.raises(ValueError, match=r"latent sites \['k'\] are discrete"):
        fit(discrete)


def test_a_model_whose_factors_take_no_rows():
    def second(x, y=None):
        r = numpyro.sample("net.r", dist.Normal(1.0, 0.4).expand([2]).to_event(1))
        numpyro.sample("other", dist.Normal(r * jnp.ones(2), 1.0).to_event(1), obs=jnp.ones(2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ r, 0.5), obs=y)

    with pytest.raises((TypeError, ValueError)) as caught:
        fit(second)
    assert "per_example=False" in "".join(caught.value.__notes__)
    assert np.isfinite(fit(second, objective=ppl_bnn.Rank1ELBO(per_example=False)).losses).all()


def test_a_fit_through_arviz_and_pickle(tmp_path):
    """Weights and components are still what they were."""
    net = models.rank1(models.MLP(2, (4,), 1))
    bnn = models.regression(net, priors.fan_in_normal(), noise=0.5)
    result = fit(bnn)
    expected = ppl_bnn.predict(result, X).mean
    saved = ppl_bnn.to_arviz(result)
    np.testing.assert_allclose(ppl_bnn.predict(saved, X, model=bnn).mean, expected, rtol=1e-5)
    for judge in (lambda: ppl_bnn.rhat(saved), lambda: ppl_bnn.diagnose(saved, X, model=bnn)):
        with pytest.raises(ValueError, match="components of a fit"):
            judge()
    copied = pickle.loads(pickle.dumps(fit()))
    np.testing.assert_allclose(ppl_bnn.predict(copied, X).mean, ppl_bnn.predict(fit(), X).mean)


def test_a_source_validates_with_all_its_rows():
    x, y = np.tile(X, (3, 1)), np.arange(3 * N, dtype=np.float32)
    source = ppl_bnn.RowSource(lambda index: (x[index], y[index]), 3 * N)
    run = partial(fit, optimizer=optax.set_to_zero())
    read, held = (run(validation=data).validation for data in (source, (x, y)))
    np.testing.assert_allclose(read, held, rtol=1e-6)
    with pytest.raises(ValueError, match="`validation` must be"):
        run(validation=[(x, y)])


def test_an_epoch_without_a_score_is_not_the_best(monkeypatch):
    scores = iter([np.nan, 0.5, 0.7])
    monkeypatch.setattr(fitting_score.Score, "__call__", lambda self, draws: next(scores))
    result = fit(num_epochs=3, validation=(X, Y))
    second = fit(num_epochs=2)
    for name, value in result.best.params.items():
        np.testing.assert_array_equal(value, second.params[name])


def test_a_score_that_fails_costs_no_steps(tmp_path, monkeypatch):
    count = []

    def fail_once(self, draws):
        count.append(draws)
        if len(count) == 2:
            raise OSError("validation is gone")
        return 1.0

    monkeypatch.setattr(fitting_score.Score, "__call__", fail_once)
    run = partial(fit, num_epochs=4, validation=(X, Y), checkpoint=tmp_path / "fit")
    with pytest.warns(RuntimeWarning, match="validation is gone"):
        run()
    assert len(run().losses) == 12


def test_passes_that_come_to_an_end():
    class Stored:
        def __init__(self):
            self.batches = ((X[i : i + 4], Y[i : i + 4]) for i in range(0, N, 4))

        def __iter__(self):
            return self.batches

    # the first batch was looked at, and is gone
    with pytest.warns(RuntimeWarning, match=rf"gave {N - 4} rows, and `num_rows`.* is {N}"):
        with pytest.warns(RuntimeWarning, match="there were no more batches"):
            fit(data=Stored(), batch_size=None, num_rows=N, num_epochs=3)
    with pytest.raises(ValueError, match="`num_rows` is 3, but a batch of `data` has 4 rows"):
        fit(data=[(X[:4], Y[:4])], batch_size=None, num_rows=3)
    with pytest.warns(RuntimeWarning, match="4 rows does not divide among the 8 devices"):
        batches = [(X[:8], Y[:8]), (X[8:], Y[8:])]
        fit(data=batches, batch_size=None, num_rows=N, mesh=ppl_bnn.mesh(data=8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl_schedule": lambda step: jnp.array([0.0, 5.0])}, "`kl_schedule` must give one weight"),
        ({"kl_schedule": lambda step: -1.0}, "`kl_schedule` must give one weight"),
        ({"kl_schedule": lambda step: jnp.nan}, "`kl_schedule` must give one weight"),
        ({"compute_dtype": "bf16"}, "`compute_dtype` must be one of"),
        ({"guide": AutoLaplaceApproximation(model)}, "a point while it is fitted"),
        ({"data": (np.ma.masked_less(X, 0), Y)}, "MaskedArray"),
    ],
)
def test_settings_that_mean_something_else(options, message):
    with pytest.raises(ValueError, match=message):
        fit(**options)


def test_flags_and_tables_of_a_model():
    """A flag is asked by Python, a table is an array, and neither is a row."""

    def flagged(x, y=None, double=False, table=None):
        r = numpyro.sample("net.r", dist.Normal(1.0, 0.4).expand([2]).to_event(1))
        mean = (x * r).sum(-1) * (2.0 if double else 1.0) + table[0]
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    table = np.ones(3, np.float32)
    run = partial(fit, flagged, optimizer=optax.set_to_zero(), validation=(X, Y))
    plain = run(model_kwargs={"double": False, "table": table})
    double = run(model_kwargs={"double": True, "table": table})
    assert (plain.losses != double.losses).all()
    assert plain.validation[0, 1] != double.validation[0, 1]
    mean = ppl_bnn.predict(double, X, model_kwargs={"table": table}).mean
    r = double.draws().flat()["net.r"].mean(0)
    np.testing.assert_allclose(mean, 2 * X @ r + 1, rtol=1e-4, atol=1e-5)
