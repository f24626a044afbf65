"""What `ppl_bnn.HMC` alone does: adaptation, starts, and sharded data."""

import re

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
QUICK = {"step_size": 0.1, "warm_start": 0}  # to compile; adapted all the same


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.deterministic("norm", jnp.sum(w**2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def make(kernel, num_warmup=20, num_samples=30, num_chains=1, **options):
    options = {"chain_method": "vectorized", "progress_bar": False} | options
    return MCMC(
        kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains, **options
    )


@pytest.mark.slow
def test_a_longer_warmup_asked_for_on_resume_adapts_no_further():
    mcmc = make(ppl_bnn.HMC(model, **QUICK), num_warmup=20)
    mcmc.run(jax.random.key(0), X, Y)
    again = make(ppl_bnn.HMC(model, **QUICK), num_warmup=1000)
    again.post_warmup_state = mcmc.last_state
    again.run(mcmc.last_state.rng_key, X, Y)
    step_sizes = np.asarray(again.get_extra_fields()["step_size"])
    assert (step_sizes == float(mcmc.last_state.step_size)).all()


@pytest.mark.slow
def test_new_data_after_a_state_was_set_are_used():
    mcmc = make(ppl_bnn.HMC(model, **QUICK), num_chains=2, num_samples=200)
    mcmc.run(jax.random.key(0), X, Y)
    mcmc.post_warmup_state = mcmc.last_state
    other = (0.8 * Y).astype(np.float32)
    mcmc.run(jax.random.key(1), X, other)
    w = np.asarray(mcmc.get_samples(group_by_chain=True)["w"])[:, 20:]
    precise = np.linalg.lstsq(X, other, rcond=None)[0]
    assert np.abs(w.mean((0, 1)) - precise).max() < 0.05  # posterior sd 0.03, old data 0.2 off
    # the very first transition already starts from the density of the new data
    state = mcmc.sampler.refresh(mcmc.post_warmup_state, (X, other), {})
    fresh = mcmc.sampler.init(jax.random.split(state.rng_key[0]), 1, state.z, (X, other), {})
    np.testing.assert_allclose(state.potential_energy, fresh.potential_energy, rtol=1e-5)
    assert not np.allclose(state.potential_energy, mcmc.post_warmup_state.potential_energy)
    with pytest.raises(ValueError, match="made on data of another size"):
        big = np.tile(X, (40, 1)), np.tile(Y, 40)
        mcmc.run(jax.random.key(1), *big)


def test_other_numbers_after_a_state_was_set_are_used():
    def scaled(x, y=None, noise=1.0):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    mcmc = make(ppl_bnn.HMC(scaled, **QUICK), num_warmup=30)
    mcmc.run(jax.random.key(0), X, Y, noise=0.3)
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), X, Y, noise=3.0)
    fields = mcmc.get_extra_fields()
    assert fields["is_accepted"].mean() > 0.5
    w = mcmc.get_samples()["w"][-1]
    log_prob = dist.Normal(0, 1).log_prob(w).sum() + dist.Normal(X @ w, 3.0).log_prob(Y).sum()
    np.testing.assert_allclose(fields["potential_energy"][-1], -log_prob, rtol=1e-4)


def test_numbers_of_the_fit_are_those_of_the_prediction():
    def scaled(x, y=None, noise=1.0):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    mcmc = make(ppl_bnn.HMC(scaled, **QUICK))
    mcmc.run(jax.random.key(0), x=X, y=Y, noise=0.25)
    np.testing.assert_allclose(ppl_bnn.predict(mcmc, X[:2]).aleatoric_variance, 0.25**2)
    doubled = ppl_bnn.predict(mcmc, X[:2], model_kwargs={"noise": 0.5})
    np.testing.assert_allclose(doubled.aleatoric_variance, 0.5**2)
    with pytest.raises(ValueError, match="`x` has 1 features, the model was fitted on 3"):
        ppl_bnn.predict(mcmc, X[:2, :1])


def test_mesh_with_parallel_chains_is_refused():
    mcmc = make(ppl_bnn.HMC(model, mesh=ppl_bnn.mesh(data=2)), 2, 2, 4, chain_method="parallel")
    with pytest.raises(ValueError, match="`mesh` does not go with chain_method='parallel'"):
        mcmc.run(jax.random.key(0), X, Y)


# where the data are --------------------------------------------------------------------------

N, D = 4001, 5  # 4001 rows are padded to 4004 on four devices
BIG_X = RNG.normal(size=(N, D)).astype(np.float32)
BIG_Y = (BIG_X[:, 0] + 0.1 * RNG.normal(size=N)).astype(np.float32)


def big_model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([D]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


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


def placed(how, mesh):
    if how == "numpy":
        return BIG_X, BIG_Y
    if how == "one device":
        return jnp.asarray(BIG_X), jnp.asarray(BIG_Y)
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    return jax.device_put(BIG_X[:-1], spec), jax.device_put(BIG_Y[:-1], spec)


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("how", ["numpy", "one device", "sharded"])
def test_data_stay_sharded_under_default_arguments(programs, how, chains):
    mesh = ppl_bnn.mesh(data=4)
    mcmc = make(
        ppl_bnn.HMC(big_model, **QUICK, mesh=mesh),
        num_warmup=2,
        num_samples=2,
        num_chains=chains,
    )
    mcmc.run(jax.random.key(0), *placed(how, mesh))
    text = max(programs, key=len)
    local = (N - (how == "sharded") + 3) // 4
    assert f"f32[{local},{D}]" in text
    assert not re.search(rf"f32\[400[0-9],{D}\]", text)  # the whole of it, constant or not
    # one all-reduce for the gradient of a leapfrog step, one for the density at the trajectory's
    # end, one to refresh a stale state
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 3


@pytest.mark.slow
def test_mesh_of_chains_and_data_gives_the_same_posterior():
    mesh = ppl_bnn.mesh(data=2, chains=2)
    draws = [
        make(ppl_bnn.HMC(model, mesh=m, chunk_size=c), 100, 400, num_chains=4)
        for m, c in [(mesh, 10), (None, None)]
    ]
    for mcmc in draws:
        mcmc.run(jax.random.key(0), X, Y)
    a, b = (np.asarray(mcmc.get_samples()["w"]) for mcmc in draws)
    # 1600 draws each with an effective sample size of at least 400
    assert (np.abs(a.mean(0) - b.mean(0)) < 5 * np.sqrt(2 / 400) * a.std(0)).all()


def test_arguments_that_are_no_arrays_stay_what_they_are():
    def model(x, y=None, *, kind, power):
        assert kind == "linear"
        assert isinstance(power, int)
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x**power @ w, 0.3), obs=y)

    mcmc = make(ppl_bnn.HMC(model, warm_start=5, chunk_size=10), 5, 5, num_chains=2)
    mcmc.run(jax.random.key(0), X, Y, kind="linear", power=1)
    assert mcmc.get_samples()["w"].shape == (10, 3)


@pytest.mark.slow
def test_numpyros_own_random_module_is_sampled_and_a_param_is_refused():
    from flax import linen
    from numpyro.contrib.module import flax_module, random_flax_module

    def random(x, y=None):
        net = random_flax_module("net", linen.Dense(1), dist.Normal(), input_shape=(3,))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(net(x)[..., 0], 0.3), obs=y)

    mcmc = make(ppl_bnn.HMC(random, **QUICK), 5, 5)
    mcmc.run(jax.random.key(0), X, Y)
    assert mcmc.get_samples()["net/kernel"].shape == (5, 3, 1)

    def partly(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        net = flax_module("net", linen.Dense(1), input_shape=(3,))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * net(x)[..., 0], 0.3), obs=y)

    with pytest.raises(ValueError, match=r"'net\$params' is a `numpyro.param`.*kernel"):
        make(ppl_bnn.HMC(partly)).run(jax.random.key(0), X, Y)


# warm-up, and when it goes wrong -------------------------------------------------------------


def test_length_of_a_fixed_number_of_adapted_steps():
    mcmc = make(ppl_bnn.HMC(model, num_steps=7, **QUICK), num_chains=2)
    mcmc.run(jax.random.key(0), X, Y)
    fields = mcmc.get_extra_fields()
    np.testing.assert_allclose(fields["trajectory_length"], 7 * fields["step_size"], rtol=1e-5)
    accept_prob = np.exp(np.minimum(-np.asarray(fields["energy_error"]), 0))
    np.testing.assert_allclose(fields["accept_prob"], accept_prob, rtol=1e-5)
    assert accept_prob.min() < 0.99


@pytest.mark.slow
def test_draws_without_metropolis_are_flagged():
    mcmc = make(
        ppl_bnn.HMC(model, metropolis=False, adapt_step_size=False, **QUICK | {"step_size": 1.0})
    )
    mcmc.run(jax.random.key(0), X, Y)
    assert not mcmc.get_extra_fields()["metropolis"].any()
    assert mcmc.get_extra_fields()["accept_prob"].mean() < 0.5
    finite = ~np.asarray(mcmc.get_extra_fields()["diverging"])
    assert np.asarray(mcmc.get_extra_fields()["is_accepted"])[finite].all()

    burn_in = make(ppl_bnn.HMC(model, metropolis_in_warmup=False, **QUICK), num_warmup=10)
    burn_in.warmup(jax.random.key(0), X, Y, collect_warmup=True)
    assert not burn_in.get_extra_fields()["metropolis"].any()
    burn_in.run(jax.random.key(0), X, Y)
    assert burn_in.get_extra_fields()["metropolis"].all()


@pytest.mark.slow
def test_collapse_freezes_keeps_what_was_drawn_and_warns():
    kernel = ppl_bnn.HMC(model, max_num_steps=2, target_accept_prob=0.99, warm_start=20)
    mcmc = make(kernel, num_warmup=50, num_samples=20, num_chains=2)
    with pytest.warns(RuntimeWarning, match=r"HMC froze at transition \d+: .*max_num_steps = 2"):
        mcmc.run(jax.random.key(0), X, Y)
        jax.effects_barrier()
    failed_at = np.asarray(mcmc.get_extra_fields()["failed_at"])
    assert (failed_at == failed_at[0]).all() and 0 <= failed_at[0] <= 50
    assert np.isfinite(mcmc.get_samples()["w"]).all()


def test_collapse_after_warmup_keeps_the_draws_before_it():
    kernel = ppl_bnn.HMC(model, max_num_steps=60, **QUICK)
    mcmc = make(kernel, num_warmup=100, num_samples=20)
    mcmc.run(jax.random.key(0), X, Y)
    state = mcmc.last_state
    assert int(state.failed_at) == -1
    tiny = state.adapt_state._replace(step_size=state.adapt_state.step_size / 100)
    mcmc.post_warmup_state = state._replace(adapt_state=tiny)
    with pytest.warns(RuntimeWarning, match="HMC froze at transition 120"):
        mcmc.run(jax.random.key(1), X, Y)
        jax.effects_barrier()
    assert (np.asarray(mcmc.get_extra_fields()["num_steps"])[1:] == 0).all()


@pytest.mark.slow
def test_starts_differ_between_chains_and_follow_the_strategy():
    def starts(**options):
        kernel = ppl_bnn.HMC(model, **QUICK, **options)
        state = kernel.init(jax.random.split(jax.random.key(0), 3), 1, None, (X, Y), {})
        return np.asarray(state.z["w"])

    prior = starts()
    assert len(np.unique(prior[:, 0])) == 3
    given = starts(init_strategy={"w": jnp.array([1.0, 2.0, 3.0]), "noise": jnp.array(0.5)})
    np.testing.assert_array_equal(given, np.tile([1.0, 2.0, 3.0], (3, 1)))
    partly = starts(init_strategy={"w": jnp.array([1.0, 2.0, 3.0])})
    np.testing.assert_array_equal(partly, given)
    numpyros = starts(init_strategy=numpyro.infer.init_to_value(values={"w": jnp.zeros(3)}))
    assert (numpyros == 0).all()


@pytest.mark.slow
def test_starts_like_the_networks_own_initialisation():
    net = ppl_bnn.models.MLP(3, (50,), 1)
    network = ppl_bnn.models.regression(net, ppl_bnn.priors.normal(10.0))
    kernel = ppl_bnn.HMC(network, init_strategy="network", **QUICK)
    state = kernel.init(jax.random.split(jax.random.key(0), 4), 1, None, (X, Y), {})
    own = ppl_bnn.initial_weights("net", net)["net/layers.0.kernel"]
    started = np.asarray(state.z["net/layers.0.kernel"])
    assert started.std() == pytest.approx(float(own.std()), rel=0.2)
    assert len(np.unique(started[:, 0, 0])) == 4
    assert (np.asarray(state.z["net/layers.0.bias"]) == 0).all()


def test_init_params_are_where_the_chain_starts():
    z = {"w": jnp.array([1.0, -1.0, 0.5]), "noise": jnp.array(-1.0)}
    kernel = ppl_bnn.HMC(model, **QUICK)
    state = kernel.init(jax.random.key(0), 1, z, (X, Y), {})
    np.testing.assert_array_equal(state.z["w"], z["w"])
    with pytest.raises(ValueError, match=r"`init_params\['w'\]` has shape \(2,\), expected \(3,\)"):
        kernel.init(jax.random.key(0), 1, z | {"w": jnp.ones(2)}, (X, Y), {})
    with pytest.raises(ValueError, match="must hold the unconstrained sites"):
        kernel.init(jax.random.key(0), 1, {"w": jnp.ones(3)}, (X, Y), {})


def test_warm_start_rescues_chains_from_wide_priors():
    def wide(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 30).expand([3]).to_event(1))
        noise = numpyro.sample("noise", dist.LogNormal(-1.0, 0.3))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    def energy(warm_start):
        kernel = ppl_bnn.HMC(wide, step_size=0.1, warm_start=warm_start)
        keys = jax.random.split(jax.random.key(0), 4)
        return float(kernel.init(keys, 1, None, (X, Y), {}).potential_energy.max())

    assert energy(0) > 1e5
    assert energy(1000) < 100


@pytest.mark.slow
def test_warm_start_reaches_the_posterior_of_a_wide_heteroscedastic_network(uci):
    """N(0, 1) weights on concrete: prior draws have energies of 10^7 and noise scales of 10^-8."""
    x, y, _, _ = uci("concrete")
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    network = ppl_bnn.models.regression(
        ppl_bnn.models.MLP(8, (50,), 2), ppl_bnn.priors.normal(1.0), noise="heteroscedastic"
    )
    kernel = ppl_bnn.HMC(network, step_size=0.1)
    keys = jax.random.split(jax.random.key(0), 4)
    state = kernel.init(keys, 1, None, (x.astype("f"), y.astype("f")), {})
    # the posterior's own energies are about 200 to 500; Adam as it comes stops at 5,000 to 10^6
    assert float(state.potential_energy.max()) < 1000


def test_progress_bar_text():
    kernel = ppl_bnn.HMC(model, **QUICK)
    state = kernel.init(jax.random.key(0), 1, None, (X, Y), {})
    assert "0 steps of size" in kernel.get_diagnostics_str(state)
    frozen = state._replace(failed_at=jnp.int32(7))
    assert kernel.get_diagnostics_str(frozen) == "frozen at transition 7"
