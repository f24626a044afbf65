"""What every kernel owes to NumPyro's `MCMC`: chain methods, resuming, and where data are."""

import pickle
import re
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.util
import pytest
from numpyro.infer import MCMC

import ppl_bnn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(61, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -1.0, 0.5]) + 0.3 * RNG.normal(size=61)).astype(np.float32)
CALLS = []
SLOW = pytest.mark.slow


def model(x, y=None):
    CALLS.append(1)
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.deterministic("norm", jnp.sum(w**2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def hmc(model, **options):
    return ppl_bnn.HMC(model, step_size=0.1, warm_start=0, **options)  # quick to compile


def stochastic(kernel, step_size, **own):
    def make(model, **options):
        return kernel(
            model,
            step_size=step_size,
            batch_size=16,
            steps_per_draw=10,
            warm_start=200,
            **own,
            **options,
        )

    return make


# every kernel of the package, in a small setting of its own, and what it tells of its draws
KERNELS = {
    "HMC": (hmc, ("accept_prob", "diverging", "energy", "num_steps", "adapt_state.step_size")),
    "SGLD-CV": (
        stochastic(ppl_bnn.SGLD, 1e-4, gradient="control_variates", preconditioner="rmsprop"),
        ("potential_energy", "anchor.potential"),
    ),
    "SGHMC": (
        stochastic(ppl_bnn.SGHMC, 1e-4, friction=20.0, batching="epochs"),
        ("info.kinetic_temperature",),
    ),
    "SGNHT": (
        stochastic(ppl_bnn.SGNHT, 1e-4, gradient="svrg", refresh_interval=7, diffusion=20.0),
        ("info.friction", "failed_at"),
    ),
    "ReplicaExchangeSGLD": (
        stochastic(ppl_bnn.ReplicaExchangeSGLD, 1e-4, temperatures=(1.0, 1.5)),
        ("info.swap_probability", "info.noise_variance"),
    ),
}

METHODS = {
    "one chain": ("sequential", 1),
    "sequential": ("sequential", 2),
    "vectorized": ("vectorized", 3),
    "parallel": ("parallel", 4),
    "callable": (jax.vmap, 2),
}
FAST = ("vectorized", "parallel")  # the two that differ most


# one without and one with momenta; the others differ from them in what a step computes
@pytest.fixture(params=["HMC", pytest.param("SGHMC", marks=SLOW)])
def kernel(request):
    return KERNELS[request.param][0]


def make(kernel, num_warmup=20, num_samples=30, num_chains=1, **options):
    options = {"chain_method": "vectorized", "progress_bar": False} | options
    return MCMC(
        kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains, **options
    )


# NumPyro donates the buffers of draws, which JAX cannot use again under a caller's `vmap`
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    ("name", "method"),
    [
        *product(["HMC", "SGHMC"], ["vectorized"]),
        ("HMC", "parallel"),
        *(pytest.param("HMC", m, marks=SLOW) for m in METHODS if m not in FAST),
        pytest.param("SGHMC", "parallel", marks=SLOW),
        *(pytest.param(name, "vectorized", marks=SLOW) for name in KERNELS if "HMC" not in name),
    ],
)
def test_chain_methods_thinning_and_extra_fields(name, method):
    chain_method, chains = METHODS[method]
    kernel, wanted = KERNELS[name]
    mcmc = make(kernel(model), num_chains=chains, chain_method=chain_method, thinning=3)
    mcmc.run(jax.random.key(0), X, Y, extra_fields=(*wanted, "z.noise", "~z.norm"))
    samples = mcmc.get_samples(group_by_chain=True)
    assert {name: value.shape for name, value in samples.items()} == {
        "w": (chains, 10, 3),
        "noise": (chains, 10),
    }
    assert mcmc.get_samples()["w"].shape == (10 * chains, 3)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    for field in wanted:
        assert fields[field].shape[:2] == (chains, 10)
    np.testing.assert_allclose(jnp.exp(fields["z.noise"]), samples["noise"], rtol=1e-5)
    w = np.asarray(samples["w"])
    assert len(np.unique(w[..., 0])) > 5 * chains  # chains move, and each on its own
    assert np.abs(w[:, -1] - [1.0, -1.0, 0.5]).max() < 0.5


def test_deterministic_sites_are_recorded(kernel):
    mcmc = make(kernel(model), num_chains=2)
    mcmc.run(jax.random.key(0), X, Y)
    samples = mcmc.get_samples()
    np.testing.assert_allclose(samples["norm"], (samples["w"] ** 2).sum(-1), rtol=1e-5)


def test_warmup_then_run_is_run(kernel):
    whole = make(kernel(model), num_chains=2)
    whole.run(jax.random.key(0), X, Y)
    parts = make(kernel(model), num_chains=2)
    parts.warmup(jax.random.key(0), X, Y)
    parts.run(parts.post_warmup_state.rng_key, X, Y)
    np.testing.assert_array_equal(whole.get_samples()["w"], parts.get_samples()["w"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HMC", "SGHMC", "ReplicaExchangeSGLD"])
def test_resumed_through_pickle_is_uninterrupted(name):
    kernel = KERNELS[name][0]
    whole = make(kernel(model), num_samples=40, num_chains=2)
    whole.run(jax.random.key(0), X, Y)
    first = make(kernel(model), num_samples=20, num_chains=2)
    first.run(jax.random.key(0), X, Y)
    state = pickle.loads(pickle.dumps(jax.device_get(first.last_state)))
    second = make(pickle.loads(pickle.dumps(first.sampler)), num_samples=20, num_chains=2)
    second.post_warmup_state = state
    second.run(state.rng_key, X, Y)
    joined = np.concatenate(
        [m.get_samples(group_by_chain=True)["w"] for m in (first, second)], axis=1
    )
    np.testing.assert_array_equal(whole.get_samples(group_by_chain=True)["w"], joined)


@pytest.mark.slow
def test_one_kernel_for_many_runs(kernel):
    """Where NumPyro's own HMC fails: other data, fewer chains, keys in batches."""
    shared = kernel(model)
    make(shared, num_chains=3).run(jax.random.key(0), X, Y)
    make(shared, num_chains=3).run(jax.random.key(0), X[:40], Y[:40])
    make(shared).run(jax.random.key(0), X, Y)
    make(shared, num_chains=2).run(jax.random.split(jax.random.key(0), 2), X, Y)
    make(shared, num_chains=2).run(jax.random.split(jax.random.PRNGKey(0), 2), X, Y)
    mcmc = make(shared, num_chains=2, jit_model_args=True)
    mcmc.run(jax.random.key(0), X, Y)
    direct = make(kernel(model), num_chains=2)
    direct.run(jax.random.key(0), X, Y)
    np.testing.assert_allclose(
        mcmc.get_samples()["w"].mean(0), direct.get_samples()["w"].mean(0), atol=0.1
    )


@pytest.mark.slow
def test_a_second_run_draws_anew_from_its_key(kernel):
    mcmc = make(kernel(model))
    draws = []
    for seed in (0, 0, 1):
        mcmc.run(jax.random.key(seed), X, Y)
        draws.append(np.asarray(mcmc.get_samples()["w"]))
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2])


def test_float64_data_and_one_program_for_all_transitions(kernel):
    data = X.astype(np.float64), Y.astype(np.float64)
    mcmc = make(kernel(model), 2, 2, num_chains=2)
    mcmc.run(jax.random.key(0), *data)
    first = mcmc.sampler.init(jax.random.split(jax.random.key(1)), 2, None, data, {})
    # what JAX looks at when it decides whether to compile again
    for before, after in zip(*map(jax.tree.leaves, (first, mcmc.last_state)), strict=True):
        assert jax.typeof(before) == jax.typeof(after)
        assert before.committed == after.committed


def test_data_changed_in_place_are_noticed(kernel):
    x = X.copy()
    mcmc = make(kernel(model), 2, 2)
    mcmc.run(jax.random.key(0), x, Y)
    x *= 2
    with pytest.raises(ValueError, match="changed in place since the last run"):
        mcmc.run(jax.random.key(0), x, Y)


@pytest.mark.parametrize(
    "method", ["vectorized", *(pytest.param(m, marks=SLOW) for m in ("one chain", "sequential"))]
)
def test_no_retrace_on_a_second_run_with_the_same_arrays(kernel, method, monkeypatch):
    for name in ("CI", "PYTEST_XDIST_WORKER"):  # without its bar NumPyro compiles anew each time
        monkeypatch.delenv(name, raising=False)
    chain_method, chains = METHODS[method]
    mcmc = make(kernel(model), num_chains=chains, chain_method=chain_method, progress_bar=True)
    mcmc.run(jax.random.key(0), X, Y)
    CALLS.clear()
    mcmc.run(jax.random.key(1), X, Y)
    assert not CALLS


# where the data are --------------------------------------------------------------------------

N, D = 4001, 5  # 4001 rows are padded to 4004 on four devices
BIG_X = RNG.normal(size=(N, D)).astype(np.float32)
BIG_Y = (BIG_X[:, 0] + 0.1 * RNG.normal(size=N)).astype(np.float32)


def big_model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 3.0), obs=y)


@pytest.fixture
def programs(monkeypatch):
    """Texts of the programs that `MCMC.run` compiles."""
    texts = []

    def record(function, *args, **options):
        jitted = jax.jit(function, *args, **options)

        def call(*values):
            texts.append(jitted.lower(*values).compile().as_text())
            return jitted(*values)

        return call

    monkeypatch.setattr(numpyro.util, "maybe_jit", record)
    return texts


@pytest.mark.parametrize(
    "method", [m if m in FAST else pytest.param(m, marks=SLOW) for m in METHODS]
)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_data_are_no_constants_and_in_no_state(kernel, programs, method):
    chain_method, chains = METHODS[method]
    mcmc = make(
        kernel(big_model),
        num_warmup=2,
        num_samples=2,
        num_chains=chains,
        chain_method=chain_method,
    )
    mcmc.run(jax.random.key(0), BIG_X, BIG_Y)
    for text in programs:
        assert not re.search(rf"f32\[{N}(,{D})?\]\S* constant\(", text)
    assert all(N not in leaf.shape for leaf in jax.tree.leaves(mcmc.last_state))


def device_bytes():
    return sum(a.nbytes for a in jax.live_arrays() if N in a.shape)


def test_numpy_data_are_on_the_device_once(kernel):
    before = device_bytes()
    mcmc = make(kernel(big_model), num_warmup=2, num_samples=2, num_chains=2)
    mcmc.run(jax.random.key(0), BIG_X, BIG_Y)
    assert device_bytes() - before == BIG_X.nbytes + BIG_Y.nbytes
