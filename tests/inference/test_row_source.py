"""Data that stay on the host: the same chains, read batch by batch."""

import pickle
import re
import warnings

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import ppl_bnn
from ppl_bnn.inference import sgmcmc_transition
from ppl_bnn.inference.batches import BATCHING

N = 90
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))  # in float64, as tables come
Y = X @ np.array([1.0, -1.0, 0.5]) + 0.5 * RNG.normal(size=N)
SLOW = pytest.mark.slow


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def make(*, kernel=ppl_bnn.SGLD, chain_method="vectorized", num_warmup=5, num_samples=20, **own):
    options = {"step_size": 2e-4, "batch_size": 20, "warm_start": 30, "steps_per_draw": 3} | own
    return MCMC(
        kernel(options.pop("model", model), **options),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=2,
        chain_method=chain_method,
        progress_bar=False,
    )


def draws(mcmc, *data):
    mcmc.run(jax.random.key(0), *data)
    return np.asarray(mcmc.get_samples(group_by_chain=True)["w"])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": ppl_bnn.SGHMC, "friction": 20.0, "batching": "epochs"},
        pytest.param({"batching": "without_replacement", "chain_method": "sequential"}, marks=SLOW),
        pytest.param({"batching": "iid", "chain_method": "parallel"}, marks=SLOW),
        pytest.param({"gradient": "svrg", "refresh_interval": 7, "chunk_size": 40}, marks=SLOW),
        pytest.param({"gradient": "control_variates", "mesh": 4}, marks=SLOW),
        pytest.param(
            {"kernel": ppl_bnn.ReplicaExchangeSGLD, "temperatures": (1.0, 2.0)}, marks=SLOW
        ),
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_the_same_chains_as_with_data_on_the_device(options):
    if "mesh" in options:
        options = options | {"mesh": ppl_bnn.mesh(data=options["mesh"])}
    expected = draws(make(**options), X, Y)
    found = draws(make(batches=(X, Y), **options))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(found[:, -1], axis=0).max() > 1e-3  # two chains
    assert np.std(found, axis=(0, 1)).min() > 1e-3  # that move


@pytest.fixture(params=["memory-mapped", "h5py", "by name", "function"])
def batches(request, tmp_path):
    if request.param == "memory-mapped":
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "y.npy", Y)
        yield tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    elif request.param == "h5py":
        with h5py.File(tmp_path / "data.h5", "w") as file:
            file["x"], file["y"] = X, Y
        with h5py.File(tmp_path / "data.h5") as file:
            yield file["x"], file["y"]
    elif request.param == "by name":
        yield {"y": Y, "x": X}
    else:
        yield ppl_bnn.RowSource(lambda index: (X[index], Y[index]), N)


@pytest.mark.slow
def test_where_rows_may_come_from(batches):
    np.testing.assert_array_equal(draws(make(batches=batches)), draws(make(batches=(X, Y))))


@pytest.mark.slow
@pytest.mark.parametrize("batching", BATCHING)
def test_a_resumed_run_reads_on_where_it_stopped(batching):
    options = {"batches": (X, Y), "batching": batching, "num_warmup": 0}
    whole = draws(make(num_samples=20, **options))
    half = make(num_samples=10, **options)
    first = draws(half)
    state = pickle.loads(pickle.dumps(jax.device_get(half.last_state)))
    resumed = make(num_samples=10, **options)
    resumed.post_warmup_state = state
    resumed.run(state.rng_key)
    second = np.asarray(resumed.get_samples(group_by_chain=True)["w"])
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), whole)


def test_rows_that_cannot_be_read_stop_the_chains_and_lose_nothing():
    calls = []

    def fetch(index):
        calls.append(len(index))
        if len(calls) > 40:
            raise OSError("the disk is gone")
        return X[index], Y[index]

    source = ppl_bnn.RowSource(fetch, N)
    mcmc = make(batches=source, warm_start=0, num_warmup=0)
    with pytest.warns(RuntimeWarning) as caught:
        w = draws(mcmc)
        jax.effects_barrier()
    messages = [str(warning.message) for warning in caught]
    assert any(re.search("could not be read: OSError: the disk is gone", m) for m in messages)
    assert any(re.search("chain 1 at step", m) for m in messages)
    failed_at = mcmc.get_extra_fields(group_by_chain=True)["failed_at"][:, -1]
    assert (failed_at > 5).all() and (failed_at < 60).all()
    assert np.isfinite(w).all() and np.ptp(w[:, :5], axis=1).min() > 0
    np.testing.assert_array_equal(w[:, -1], w[:, -2])


@pytest.mark.parametrize("numbers", [2**18, 30], ids=["one block", "three blocks"])
def test_an_epoch_reads_every_row_once(numbers, monkeypatch):
    """Nine batches of ten rows; their numbers are drawn at once, or for three at a time."""
    monkeypatch.setattr(sgmcmc_transition, "MOST_NUMBERS", numbers)
    read = []

    def fetch(index):
        read.append(index)
        return X[index], Y[index]

    kernel = ppl_bnn.SGLD(
        model,
        step_size=1e-4,
        batch_size=10,
        batching="epochs",
        steps_per_draw=9,
        warm_start=0,
        batches=ppl_bnn.RowSource(fetch, N),
    )
    state = kernel.init(jax.random.key(0), 0, None, (), {})
    read.clear()
    for _ in range(2):
        state = kernel.sample(state, (), {})
    jax.block_until_ready(state.z)
    epochs = np.concatenate(read).reshape(2, N)
    np.testing.assert_array_equal(np.sort(epochs), [np.arange(N)] * 2)
    assert np.any(epochs[0] != epochs[1])


def test_integers_that_jax_would_cut_stop_the_chains():
    x = np.zeros((N, 3), np.int64)
    x[-1] = 2**40
    mcmc = make(batches=(x, Y), warm_start=0, num_warmup=0, batch_size=80)
    with pytest.warns(RuntimeWarning) as caught:
        draws(mcmc)
        jax.effects_barrier()
    assert any("JAX would cut them to 32 bits" in str(warning.message) for warning in caught)


def with_mean_of_rows(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    mean = numpyro.deterministic("mean", x @ w)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def with_statistics_of_rows(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.deterministic("length", jnp.sqrt(w @ w))
    numpyro.deterministic("average", (x @ w).mean())
    numpyro.deterministic("number", 1.0 * len(x))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


BAD = {
    "iterator": ({"batches": iter([(X, Y)])}, "An iterator does not do"),
    "lists": ({"batches": (X.tolist(), Y)}, "`batches` must be the model's arguments"),
    "empty": ({"batches": ()}, "`batches` must be the model's arguments"),
    "lengths": ({"batches": (X, Y[:-1])}, r"have \[90, 89\] rows"),
    "no rows": ({"batches": (X[:0], Y[:0])}, "`num_rows` is 0"),
    "too many": ({"batches": (X, Y), "batch_size": 91}, "`batch_size` is 91, .* 90 rows"),
    "nan": ({"batches": (X * np.nan, Y)}, "`x`.*NaN"),
    "labels": ({"batches": (X,)}, "observe"),
    "deterministic": (
        {"batches": (X, Y), "model": with_mean_of_rows},
        r"deterministic sites \['mean'\] depend on the rows",
    ),
    "statistic": (
        {"batches": (X, Y), "model": with_statistics_of_rows},
        r"deterministic sites \['average', 'number'\] depend on the rows",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches(name, as_users_run):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        make(**options).run(jax.random.key(0))


def test_bad_sources(as_users_run):
    with pytest.raises(ValueError, match="takes a key and nothing else; it got 2 positional"):
        make(batches=(X, Y)).run(jax.random.key(0), X, Y)
    with pytest.raises(ValueError, match="`fetch` must be a function"):
        ppl_bnn.RowSource((X, Y), N)
    with pytest.raises(ValueError, match=r"asked for 2 rows and gave an array of shape \(90, 3\)"):
        ppl_bnn.RowSource(lambda index: (X, Y), N)
    with pytest.raises(ValueError, match="must give the model's arguments as a tuple"):
        ppl_bnn.RowSource(lambda index: X[index], N)


@pytest.mark.slow
def test_an_anchor_does_not_serve_a_source_that_has_grown():
    """The first rows are the same."""
    sources = (X, Y), (np.concatenate([X, X]), np.concatenate([Y, Y + 2]))
    options = {"gradient": "control_variates", "steps_per_draw": 1}
    kernels = [make(batches=batches, **options).sampler for batches in sources]
    state = kernels[0].init(jax.random.key(0), 0, None, (), {})
    moved = kernels[1].sample(state, (), {})
    np.testing.assert_array_equal(moved.anchor.position["w"], state.anchor.position["w"])
    assert np.abs(moved.anchor.gradient["w"] - state.anchor.gradient["w"]).max() > 1


@pytest.mark.slow
def test_rows_that_fail_during_the_warm_start_move_nothing():
    is_gone = False

    def fetch(index):
        if is_gone:
            raise OSError("gone")
        return X[index], Y[index]

    starts = []
    for warm_start in (0, 100):
        source = ppl_bnn.RowSource(fetch, N)
        kernel = make(batches=source, warm_start=warm_start).sampler
        kernel.init(jax.random.key(0), 0, None, (), {})
        is_gone = warm_start > 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            starts.append(kernel.init(jax.random.key(1), 0, None, (), {}).z["w"])
            jax.effects_barrier()
        assert any("could not be read: OSError: gone" in str(w.message) for w in caught) == is_gone
    np.testing.assert_array_equal(*starts)
