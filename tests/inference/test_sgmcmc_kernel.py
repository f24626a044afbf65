"""What all stochastic-gradient kernels do as kernels of NumPyro's `MCMC`."""

import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import ppl_bnn
from ppl_bnn import schedules
from ppl_bnn.draws import as_draws
from ppl_bnn.inference import sgmcmc_transition
from ppl_bnn.inference.preconditioner import rmsprop

RNG = np.random.default_rng(0)
N = 200
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -1.0, 0.5]) + 0.5 * RNG.normal(size=N)).astype(np.float32)
NOISE, PRIOR = 0.5, 1.0


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


PRECISION = X.T @ X / NOISE**2 + np.eye(3) / PRIOR**2
COVARIANCE = np.linalg.inv(PRECISION)
MEAN = COVARIANCE @ X.T @ Y / NOISE**2
KERNELS = {
    "SGLD": (ppl_bnn.SGLD, {}),
    "SGHMC": (ppl_bnn.SGHMC, {"friction": 20.0}),
    "SGNHT": (ppl_bnn.SGNHT, {"diffusion": 20.0}),
    "ReplicaExchangeSGLD": (
        ppl_bnn.ReplicaExchangeSGLD,
        {"temperatures": (1.0, 1.1), "swap_noise": 1.0},
    ),
}
ALONE = [name for name in KERNELS if "Replica" not in name]  # of one replica a chain
STEP = 0.02 / PRECISION[0, 0]


def make(name, num_warmup=20, num_samples=50, num_chains=2, model=model, **options):
    kernel, own = KERNELS[name]
    options = {"step_size": STEP, "batch_size": 20, "warm_start": 20} | own | options
    return MCMC(
        kernel(model, **options),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )


def run(mcmc, *data, seed=0):
    mcmc.run(jax.random.key(seed), *(data or (X, Y)))
    return mcmc


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.25, 1.0])
@pytest.mark.parametrize("name", ALONE)
def test_posterior_of_a_linear_regression_with_control_variates(name, temperature):
    """The anchor is near the mode, so that gradients have hardly any noise."""
    mcmc = run(
        make(
            name,
            50,
            400,
            num_chains=8,
            steps_per_draw=100,
            gradient="control_variates",
            temperature=temperature,
            warm_start=1000,
        )
    )
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["w"], float)
    scale = np.sqrt(temperature * np.diag(COVARIANCE))
    standardised = (draws - MEAN) / scale
    # chains are independent, so their own means and variances tell the Monte Carlo error
    for power, expected in ((standardised, 0.0), (standardised**2, 1.0)):
        means = power.mean(axis=1)
        error = means.std(axis=0, ddof=1) / np.sqrt(len(means))
        assert (np.abs(means.mean(axis=0) - expected) < 5 * error + 0.03).all()


@pytest.mark.slow
def test_a_positive_site_is_tempered_without_its_jacobian():
    """HalfNormal(1) at T = 1/4 has mean 0.40; with the Jacobian tempered it would be 0.94."""

    def half(x, y=None):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(0.0 * scale, 1.0), obs=y)

    mcmc = make(
        "SGLD", 100, 500, 8, half, temperature=0.25, step_size=0.02, steps_per_draw=50,
        warm_start=0, batch_size=2,
    )  # fmt: skip
    run(mcmc, np.zeros((4, 1), np.float32), np.zeros(4, np.float32))
    means = np.asarray(mcmc.get_samples(group_by_chain=True)["scale"]).mean(axis=1)
    assert means.mean() == pytest.approx(0.5 * np.sqrt(2 / np.pi), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batching"),
    [
        ("SGLD", "iid"),
        ("SGHMC", "epochs"),
        ("SGNHT", "without_replacement"),
        ("ReplicaExchangeSGLD", "iid"),
    ],
)
def test_the_same_chain_on_one_device_and_on_four(name, batching):
    chains = []
    for mesh in (None, ppl_bnn.mesh(data=4), ppl_bnn.mesh(data=2, chains=2)):
        mcmc = make(name, 0, 20, mesh=mesh, batch_size=10, batching=batching, warm_start=0)
        chains.append(np.asarray(run(mcmc).get_samples(group_by_chain=True)["w"]))
    for spread in chains[1:]:
        np.testing.assert_allclose(chains[0], spread, rtol=1e-4, atol=1e-5)
    assert np.ptp(chains[0][:, -1], axis=0).max() > 1e-3  # two chains


@pytest.mark.slow
def test_one_all_reduce_a_step_and_no_pass_over_all_rows():
    mesh = ppl_bnn.mesh(data=4)
    kernel = make("SGLD", mesh=mesh, batch_size=12).sampler
    state = kernel.init(jax.random.key(0), 0, None, (X, Y), {})
    text = jax.jit(lambda s: kernel.sample(s, (X, Y), {})).lower(state).compile().as_text()
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1
    assert not re.search(rf"f32\[{N}\]\S* (dot|multiply|subtract|add)\(", text)


@pytest.mark.slow
def test_exploration_makes_no_noise_and_is_not_kept():
    schedule = schedules.cyclical(STEP, 10, exploration=0.5)
    mcmc = run(make("SGLD", 0, 40, step_size=schedule, gradient="control_variates"))
    fields = mcmc.get_extra_fields(group_by_chain=True)
    place = np.arange(40) % 10
    np.testing.assert_array_equal(fields["is_kept"][0], place >= 5)
    np.testing.assert_array_equal(fields["temperature"][0], np.where(place >= 5, 1.0, 0.0))
    draws = as_draws(mcmc)
    assert draws.num_draws == 20 and draws.stats["step_size"].shape == (2, 20)
    kept = mcmc.get_samples(group_by_chain=True)["w"][:, place >= 5]
    np.testing.assert_array_equal(draws.samples["w"], kept)
    mcmc = run(make("SGLD", 0, 5, step_size=schedule))
    with pytest.raises(ValueError, match="schedule keeps none of the draws"):
        as_draws(mcmc)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [2**18, 20], ids=["one block", "five blocks"])
def test_step_sizes_are_counted_through_warmup_and_steps_of_a_draw(numbers, monkeypatch):
    """Random numbers are drawn for some steps at once, here for all five, or for one."""
    monkeypatch.setattr(sgmcmc_transition, "MOST_NUMBERS", numbers)
    mcmc = make("SGLD", 3, 4, step_size=lambda t: STEP / (1.0 + t), steps_per_draw=5)
    step_sizes = run(mcmc).get_extra_fields(group_by_chain=True)["step_size"][0]
    np.testing.assert_allclose(step_sizes, STEP / (1 + np.array([19, 24, 29, 34])), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [None, {"data": 1, "chains": 2}], ids=["together", "spread"])
def test_a_chain_that_fails_leaves_the_others_alone(mesh):
    mesh = None if mesh is None else ppl_bnn.mesh(**mesh)
    draws, failed = [], []
    for second in (0.0, 1e17):  # the square of its gradient overflows
        position = {"w": jnp.stack([jnp.zeros(3), jnp.full(3, second)])}
        mcmc = make("SGHMC", 0, 5, mesh=mesh, steps_per_draw=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mcmc.run(jax.random.key(0), X, Y, init_params=position)
            jax.effects_barrier()
        draws.append(np.asarray(mcmc.get_samples(group_by_chain=True)["w"]))
        failed.append(np.asarray(mcmc.last_state.failed_at))
    np.testing.assert_array_equal(failed, [[-1, -1], [-1, 0]])
    np.testing.assert_array_equal(draws[0][0], draws[1][0])
    np.testing.assert_array_equal(draws[1][1], np.float32(1e17))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_an_unstable_step_freezes_says_where_and_keeps_what_was_drawn(name):
    grows = {"step_size": lambda t: jnp.where(t < 50, STEP, 1e8), "steps_per_draw": 2}
    mcmc = make(name, 0, 60, warm_start=100, **grows)
    with pytest.warns(RuntimeWarning, match=r"no longer finite: chain 0 at step \d+, .*step_size"):
        run(mcmc)
        jax.effects_barrier()
    failed_at = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["failed_at"])[:, -1]
    assert (failed_at > 50).all() and (failed_at < 120).all()
    w = np.asarray(mcmc.get_samples(group_by_chain=True)["w"])
    assert np.isfinite(w).all()
    assert np.abs(w[:, :24] - MEAN).max() < 1.0
    np.testing.assert_array_equal(w[:, -1], w[:, -2])


@pytest.mark.slow
def test_svrg_moves_its_anchor_and_control_variates_do_not():
    kernel = make("SGLD", gradient="svrg", refresh_interval=4, warm_start=0).sampler
    state = kernel.init(jax.random.key(0), 0, None, (X, Y), {})
    sample = jax.jit(lambda state: kernel.sample(state, (X, Y), {}))
    anchors = []
    for _ in range(9):
        state = sample(state)
        anchors.append(float(state.anchor.position["w"][0]))
    # moved before the first, the fifth and the ninth step
    assert [len(set(anchors[a:b])) for a, b in ((0, 4), (4, 8), (0, 9))] == [1, 1, 3]
    kernel = make("SGLD", gradient="control_variates", warm_start=0).sampler
    first = kernel.init(jax.random.key(0), 0, None, (X, Y), {})
    later = jax.jit(lambda state: kernel.sample(state, (X, Y), {}))(first)
    np.testing.assert_array_equal(first.anchor.position["w"], later.anchor.position["w"])


@pytest.mark.slow
def test_an_adaptive_preconditioner_is_frozen_after_warmup():
    for adapt, changes in (("warmup", False), ("always", True)):
        options = {"preconditioner": "rmsprop", "adapt_preconditioner": adapt, "warm_start": 0}
        mcmc = run(make("SGLD", 10, 10, **options))
        learnt = mcmc.last_state.core.preconditioner.mean_square["w"]
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(jax.random.key(1), X, Y)
        again = mcmc.last_state.core.preconditioner.mean_square["w"]
        assert bool(np.any(learnt != again)) == changes


@pytest.mark.slow
@pytest.mark.parametrize("batching", ["iid", "without_replacement", "epochs"])
def test_no_key_is_used_twice(batching):
    for name in KERNELS:
        kernel = make(name, batching=batching, warm_start=0).sampler
        state = kernel.init(jax.random.key(0), 0, None, (X, Y), {})
        with jax.debug_key_reuse(True):
            jax.jit(lambda s, kernel=kernel: kernel.sample(s, (X, Y), {}))(state)


@pytest.mark.slow
def test_anchor_of_other_data_is_renewed():
    mcmc = run(make("SGLD", 5, 5, gradient="control_variates"))
    old = mcmc.last_state.anchor
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), X, 2 * Y)
    new = mcmc.last_state.anchor
    np.testing.assert_array_equal(old.position["w"], new.position["w"])
    assert not np.allclose(old.gradient["w"], new.gradient["w"])


@pytest.mark.parametrize("preconditioner", ["identity", {"w": np.full(3, 0.1)}], ids=["1", "G"])
def test_a_step_beyond_the_limit_of_stability_is_named(preconditioner):
    """With all rows in a batch the limit is that of the posterior's own precision."""
    largest = np.linalg.eigvalsh(PRECISION)[-1]
    scale = 1.0 if preconditioner == "identity" else 0.1
    options = {"preconditioner": preconditioner, "batching": "without_replacement"}

    def start(step_size):
        kernel = make("SGLD", step_size=step_size, batch_size=N, warm_start=0, **options).sampler
        kernel.init(jax.random.key(0), 0, None, (X, Y), {})

    start(1.9 / (largest * scale))
    with pytest.warns(RuntimeWarning, match="beyond the limit of stability") as caught:
        start(2.3 / (largest * scale))
    (limit,) = re.findall(r"curvature\) = (\S+),", str(caught[0].message))
    assert float(limit) == pytest.approx(2 / (largest * scale), rel=0.15)


def two_sites(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([3]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, PRIOR))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w + b, NOISE), obs=y)


@pytest.mark.parametrize(
    ("name", "by_site", "for_all"),
    [
        ("SGHMC", {"noise_estimate": {"w": 9.0, "b": 9.0}}, {"noise_estimate": 9.0}),
        ("SGLD", {"preconditioner": {"w": 1.0, "b": 1.0}}, {}),
    ],
)
def test_options_by_site_are_those_for_all_if_they_are_equal(name, by_site, for_all):
    def last(**options):
        mcmc = run(make(name, 2, 5, model=two_sites, warm_start=0, **options))
        return jax.tree.leaves(jax.device_get(mcmc.last_state.z))

    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), last(**by_site), last(**for_all)
    )
    other = jax.tree.map(lambda value: 1.1 * value, by_site)
    assert all(np.all(a != b) for a, b in zip(last(**other), last(**for_all), strict=True))


def test_noise_estimates_of_other_sites():
    mcmc = make("SGLD", model=two_sites, noise_estimate={"w": 1.0}, warm_start=0)
    with pytest.raises(
        ValueError, match=r"given for the sites \['w'\]; the position has \['b', 'w'\]"
    ):
        run(mcmc)


BAD = {
    "batch": ({"batch_size": N + 1}, f"`batch_size` is {N + 1}, but the model was given {N} rows"),
    "batch type": ({"batch_size": 0}, "`batch_size` must be an integer of at least 1, got 0"),
    "step": ({"step_size": -1.0}, "`step_size` must be a positive number, or a schedule"),
    "nan": ({"step_size": float("nan")}, "`step_size` must be a positive number"),
    "temperature": ({"temperature": -1.0}, "`temperature` must be a number of at least 0"),
    "batching": ({"batching": "epoch"}, "`batching` must be one of .*did you mean 'epochs'"),
    "gradient": ({"gradient": "svgr"}, "`gradient` must be one of .*did you mean 'svrg'"),
    "no interval": ({"gradient": "svrg"}, "`refresh_interval`.* goes with gradient='svrg'"),
    "interval": ({"refresh_interval": 5}, "`refresh_interval`.* goes with gradient='svrg'"),
    "preconditioner": ({"preconditioner": "rms"}, "`preconditioner` must be one of"),
    "adapt": ({"adapt_preconditioner": "never"}, "`adapt_preconditioner` must be one of"),
    "noise": ({"noise_estimate": -1.0}, "`noise_estimate` is a variance, not negative"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(name, as_users_run):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        run(make("SGLD", **options))


def test_bad_friction():
    with pytest.raises(ValueError, match="give one of `friction` and `momentum_decay`"):
        ppl_bnn.SGHMC(model, step_size=0.1, batch_size=2)
    with pytest.raises(ValueError, match="`friction` must be positive"):
        ppl_bnn.SGHMC(model, step_size=0.1, batch_size=2, friction=-1.0)
    with pytest.raises(ValueError, match=r"`momentum_decay` must be in \[0, 1\)"):
        ppl_bnn.SGHMC(model, step_size=0.1, batch_size=2, momentum_decay=1.0)


def test_models_that_have_no_batches():
    def no_rows(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        numpyro.sample("total", dist.Normal(w, 1.0), obs=1.0)

    def subsampled(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x), subsample_size=7) as index:
            numpyro.sample("y", dist.Normal(x[index] @ w, 1.0), obs=y[index])

    with pytest.raises(ValueError, match="no argument of the model holds the rows"):
        run(make("SGLD", model=no_rows))
    with pytest.raises(ValueError, match="'data' subsamples 7 of 200 rows"):
        run(make("SGLD", model=subsampled))
    with pytest.raises(ValueError, match="observe"):
        make("SGLD").run(jax.random.key(0), X)


@pytest.mark.slow
def test_a_start_that_is_not_finite_is_refused():
    mcmc = make("SGLD", warm_start=0, init_strategy={"w": jnp.full(3, 1e30)})
    with pytest.raises(ValueError, match=r"chain 0 cannot start: .*'y'"):
        run(mcmc)


@pytest.mark.parametrize("name", ALONE)
def test_the_limit_of_stability_is_that_of_the_precision(name):
    kernel = make(name, batch_size=N, warm_start=0).sampler
    expected = 2 / np.linalg.eigvalsh(PRECISION)[-1]
    assert kernel.stability_limit(jax.random.key(0), X, Y) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("preconditioner", ["rmsprop", rmsprop()], ids=["name", "object"])
def test_a_learnt_preconditioner_has_no_limit_beforehand(preconditioner):
    kernel = make("SGLD", preconditioner=preconditioner).sampler
    with pytest.raises(ValueError, match="which may learn during warm-up"):
        kernel.stability_limit(jax.random.key(0), X, Y)


def test_options_that_are_missing_or_unknown_are_named_with_the_kernel(as_users_run):
    with pytest.raises(TypeError, match=r"^SGLD missing .* 'batch_size'"):
        ppl_bnn.SGLD(model, step_size=0.1)
    with pytest.raises(TypeError, match=r"^SGHMC got an unexpected .* 'stepsize'"):
        ppl_bnn.SGHMC(model, stepsize=0.1, batch_size=2, friction=1.0)


@pytest.mark.parametrize("gives", ["a", None, np.ones(2)])
def test_a_schedule_that_gives_no_number(gives):
    with pytest.raises(ValueError, match="`temperature` is a schedule, which must give one number"):
        make("SGLD", temperature=lambda step: gives)


def test_a_state_of_another_kernel_is_refused():
    state = make("SGLD", warm_start=0).sampler.init(jax.random.key(0), 0, None, (X, Y), {})
    with pytest.raises(TypeError, match=r"comes from another kernel.*SGNHT continues only its own"):
        make("SGNHT").sampler.sample(state, (X, Y), {})


def begun(name, num_chains=None, **options):
    """Kernel and its first state."""
    kernel = make(name, **{"warm_start": 0} | options).sampler
    key = (
        jax.random.key(0) if num_chains is None else jax.random.split(jax.random.key(0), num_chains)
    )
    return kernel, kernel.init(key, 1, None, (X, Y), {})


@pytest.mark.parametrize(
    ("before", "after"), [(None, "control_variates"), ("control_variates", None)]
)
def test_a_state_with_another_estimate_of_the_gradient_is_refused(before, after):
    _, state = begun("SGLD", gradient=before or "plain")
    with pytest.raises(ValueError, match="continue with the `gradient` that it began with"):
        make("SGLD", gradient=after or "plain").sampler.sample(state, (X, Y), {})


def test_a_state_of_another_number_of_chains_is_refused():
    kernel, state = begun("SGLD", num_chains=4)
    state = state._replace(rng_key=state.rng_key[:2])
    with pytest.raises(ValueError, match="the state has 4 chains and there are 2 keys"):
        kernel.sample(state, (X, Y), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_double_precision(name):
    with jax.enable_x64(True):
        kernel, own = KERNELS[name]
        kernel = kernel(model, **{"step_size": STEP, "batch_size": 20, "warm_start": 5} | own)
        mcmc = MCMC(kernel, num_warmup=2, num_samples=3, progress_bar=False)
        mcmc.run(jax.random.key(0), X.astype(float), Y.astype(float))
        draws = np.asarray(mcmc.get_samples()["w"])
    assert draws.dtype == np.float64 and np.isfinite(draws).all()
    assert (np.ptp(draws, axis=0) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["baoab", "semi_implicit"])
def test_a_step_of_size_zero_leaves_the_chain_where_it_is(integrator):
    mcmc = MCMC(
        ppl_bnn.SGHMC(
            model,
            step_size=lambda t: jnp.where(t == 3, 0.0, STEP),
            batch_size=20,
            momentum_decay=0.9,
            integrator=integrator,
            warm_start=0,
        ),
        num_warmup=0,
        num_samples=8,
        progress_bar=False,
    )
    draws = np.asarray(run(mcmc).get_samples()["w"])
    assert np.isfinite(draws).all()
    np.testing.assert_array_equal(draws[3], draws[2])
    assert (draws[4] != draws[3]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("what", ["step_size", "temperature"])
def test_a_schedule_that_goes_astray_freezes_what_was_finite(name, what):
    value = STEP if what == "step_size" else 1.0
    options = {what: lambda t: jnp.where(t < 20, value, jnp.nan)}
    mcmc = make(name, 2, 30, **options)
    with pytest.warns(RuntimeWarning, match=r"chain 0 at step 20"):
        run(mcmc)
        jax.effects_barrier()
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["w"])
    assert np.isfinite(draws).all()
    assert (np.ptp(draws[:, :15], axis=1) > 0).all() and np.ptp(draws[:, 18:], axis=1).max() == 0


def test_a_preconditioner_needs_warmup_to_learn():
    for name in ("SGLD", "SGHMC"):
        with pytest.raises(ValueError, match="'rmsprop', which learns during warm-up"):
            run(make(name, 0, 5, preconditioner="rmsprop"))


@pytest.mark.parametrize("value", [True, "a", np.ones(2), {"w": -1.0}])
def test_bad_noise_estimate(value):
    with pytest.raises(ValueError, match="`noise_estimate` is a variance"):
        make("SGLD", noise_estimate=value)
