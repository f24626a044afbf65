"""SGHMC's core against the 2 x 2 Lyapunov equation of (theta, r) on a Gaussian."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from ppl_bnn.inference import sghmc
from ppl_bnn.inference.preconditioner import diagonal, identity, rmsprop

EPS = 0.08  # with 20 rows and M = 1 a step is 0.36 of the oscillator's 1 / omega
H = EPS**2 / 2


def stationary(integrator, lam, v, *, friction, temperature=1.0, g=1.0, eps=EPS, corrected=False):
    """Covariance of (theta, r), built from the parts of a step as matrices."""
    kick, unit = np.array([[1.0, 0.0], [-eps * lam, 1.0]]), np.array([0.0, 1.0])

    def move(time):
        return np.array([[1.0, time * g], [0.0, 1.0]])

    if integrator == "semi_implicit":
        decay = 1 - eps * friction
        # the friction acts on the momentum before the kick
        step = move(eps) @ (kick + np.diag([0.0, decay - 1]))
        by_gradient, by_noise = -eps * move(eps) @ unit, move(eps) @ unit
        injected = 2 * eps * friction * temperature / g - corrected * eps**2 * v
    else:
        decay = math.exp(-eps * friction)
        turn = move(eps / 2) @ np.diag([1.0, decay]) @ move(eps / 2)
        step = turn @ kick
        by_gradient, by_noise = -eps * turn @ unit, move(eps / 2) @ unit
        injected = (1 - decay**2) * temperature / g - corrected * (eps * (1 + decay) / 2) ** 2 * v
    assert injected > 0
    noise = v * np.outer(by_gradient, by_gradient) + injected * np.outer(by_noise, by_noise)
    return solve_discrete_lyapunov(step, noise)


def start(covariance, num_chains=1000, learnt=()):
    root = np.linalg.cholesky(covariance)
    draws = np.random.default_rng(1).normal(size=(num_chains, 2)) @ root.T
    learnt = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_chains, *leaf.shape)), learnt)
    return sghmc.State({"a": jnp.asarray(draws[:, :1])}, {"a": jnp.asarray(draws[:, 1:])}, learnt)


def moments(states, info):
    """Of theta and r; the cross moment in a form that is never small."""
    q, r = states.position["a"][:, 0], states.momentum["a"][:, 0]
    return jnp.stack([q**2, r**2], -1), info.kinetic_temperature, info.virial


def check(simulate, assert_mean, target, gradient, integrator, sweep, num_steps=800, **options):
    """Second moments of runs that begin in their stationary distributions, one run a setting."""
    v = target.noise[0, 0] if gradient == target.gradient else 0.0
    lam, g, corrected = target.hessian[0, 0], options.pop("g", 1.0), options.pop("corrected", False)
    preconditioner = identity() if g == 1.0 else diagonal({"a": np.array([g])})
    learnt = preconditioner.init({"a": jnp.zeros(1)})
    expected = [
        stationary(integrator, lam, v, g=g, corrected=corrected, **setting) for setting in sweep
    ]

    def run(states, setting):
        step = partial(
            sghmc.step,
            step_size=H,
            integrator=integrator,
            preconditioner=preconditioner,
            noise_estimate=v if corrected else None,
            **setting,
        )
        return simulate(step, states, gradient, num_steps, moments)

    def stack(trees):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    states = stack([start(covariance, learnt=learnt) for covariance in expected])
    seen = jax.vmap(run)(states, stack(sweep))
    for i, covariance in enumerate(expected):
        squares, kinetic, virial = (values[i] for values in seen)
        assert_mean(squares, np.diag(covariance), precision=0.02)
        assert_mean(kinetic, g * covariance[1, 1], precision=0.02)
        assert_mean(virial, lam * covariance[0, 0], precision=0.02)
    return expected


INTEGRATORS = ("baoab", "semi_implicit")


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("corrected", [False, True], ids=["plain", "corrected"])
def test_moments_with_minibatch_noise(location, simulate, assert_mean, integrator, corrected):
    with jax.enable_x64(True):
        target, setting = location(), {"friction": 8.0, "temperature": 1.5}
        (expected,) = check(
            simulate,
            assert_mean,
            target,
            target.gradient,
            integrator,
            [setting],
            g=0.5,
            corrected=corrected,
        )
        exact = stationary(integrator, 20.0, 0.0, g=0.5, **setting)
        if integrator == "semi_implicit" and corrected:
            np.testing.assert_allclose(expected, exact, rtol=1e-10)
        else:
            excess = expected[0, 0] / exact[0, 0] - 1
            assert abs(excess) < 0.03 if corrected else excess > 0.25


@pytest.mark.parametrize("friction", [0.1, 1.0, 10.0, 60.0])
def test_baoab_correction_is_exact_for_slow_directions(friction):
    """The formula of the docstring, in the limit of small curvature at any friction."""
    for lam, tolerance in ((1e-2, 2e-3), (1e-4, 2e-5)):
        v = 0.5 * (1 - math.exp(-2 * EPS * friction)) / EPS**2
        covariance = stationary("baoab", lam, v, friction=friction, corrected=True)
        plain = stationary("baoab", lam, v, friction=friction)
        assert lam * covariance[0, 0] == pytest.approx(1.0, rel=tolerance)
        assert lam * plain[0, 0] > 1.1


SWEEP = [{"friction": f, "temperature": t} for f in (0.1, 1.0, 10.0) for t in (0.1, 1.0, 4.0)]


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_exact_gradients(location, simulate, assert_mean, integrator):
    """At every friction the covariance is proportional to T; with "baoab" it is exact."""
    with jax.enable_x64(True):
        target, lam = location(), 20.0
        expected = check(simulate, assert_mean, target, target.exact, integrator, SWEEP)
        for setting, covariance in zip(SWEEP, expected, strict=True):
            one = stationary(integrator, lam, 0.0, friction=setting["friction"])
            np.testing.assert_allclose(covariance, setting["temperature"] * one, rtol=1e-10)
            if integrator == "baoab":
                assert lam * covariance[0, 0] == pytest.approx(setting["temperature"])
        if integrator == "semi_implicit":
            assert lam * expected[-1][0, 0] / 4 > 1.05


@pytest.mark.slow
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_frictions_and_temperatures_with_minibatch_noise(
    location, simulate, assert_mean, integrator
):
    """Runs last three relaxation times of the momentum, 2 / (friction eps) steps, or more."""
    with jax.enable_x64(True):
        target = location(batch_size=20)
        check(simulate, assert_mean, target, target.gradient, integrator, SWEEP)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_full_friction_is_sgld(integrator):
    """With the momentum wiped out at each step: drift h g, and diffusion 2 h T over many steps."""
    h, friction = 0.01, 1e6 if integrator == "baoab" else 1 / math.sqrt(0.02)
    steps, chains = 20, 4000
    state = sghmc.init(jax.random.key(0), {"a": jnp.zeros(chains)}, temperature=2.0)
    step = partial(
        sghmc.step, step_size=h, friction=friction, temperature=2.0, integrator=integrator
    )

    def body(state, rng_key):
        slope = {"a": jnp.full(chains, 3.0)}
        return step(rng_key, state, lambda _: (jnp.zeros(()), slope))[0], None

    state, _ = jax.lax.scan(body, state, jax.random.split(jax.random.key(1), steps))
    # a semi-implicit step goes twice as far: all of its new momentum counts. Of baoab's noises the
    # first and the last count in half a step each, which is a quarter of a variance each
    factor, counted = (1, steps - 0.5) if integrator == "baoab" else (2, steps)
    variance = factor * 2 * h * 2.0 * counted
    moved = np.asarray(state.position["a"])
    assert moved.mean() == pytest.approx(
        -factor * h * 3.0 * steps, abs=4 * math.sqrt(variance / chains)
    )
    assert moved.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / chains))


def test_more_gradient_noise_than_may_be_injected():
    state = sghmc.init(jax.random.key(0), {"a": jnp.zeros(3)})
    for integrator in INTEGRATORS:
        options = {"step_size": H, "friction": 1.0, "integrator": integrator}
        # 2 eps gamma = 0.16 is to be injected, eps^2 V = 0.064 or 0.64 is there
        for estimate, clipped in ((10.0, False), (100.0, True)):
            _, info = sghmc.step(jax.random.key(1), state, bowl, noise_estimate=estimate, **options)
            assert bool(info.is_clipped) == clipped


def test_momenta_have_covariance_temperature_times_mass():
    position = {"a": jnp.zeros(20_000), "b": jnp.zeros(20_000)}
    preconditioner = diagonal({"a": 4.0, "b": 0.25})
    state = sghmc.init(jax.random.key(0), position, temperature=0.5, preconditioner=preconditioner)
    again = sghmc.resample_momentum(
        jax.random.key(1), state, temperature=0.5, preconditioner=preconditioner
    )
    for momentum in (state.momentum, again.momentum):
        for name, mass in (("a", 0.25), ("b", 4.0)):
            assert np.var(momentum[name]) == pytest.approx(0.5 * mass, rel=4 * math.sqrt(1e-4))
    assert not np.any(np.asarray(state.momentum["a"]) == np.asarray(again.momentum["a"]))


def test_masses_learnt_by_rmsprop(location, simulate, assert_mean):
    """Frozen after some gradients, they are those of the Lyapunov equation."""
    with jax.enable_x64(True):
        target, preconditioner = location(), rmsprop(gradient_scale=1 / 20)
        position = {"a": jnp.zeros(1)}
        learnt = preconditioner.init(position)
        for key in jax.random.split(jax.random.key(3), 5):
            learnt = preconditioner.update(learnt, target.gradient(key, position)[1], True)
        g = float(preconditioner.scale(learnt, {"a": jnp.zeros(1)})["a"][0])
        assert 2 < g < 20
        lam, v = target.hessian[0, 0], target.noise[0, 0]
        expected = stationary("semi_implicit", lam, v, friction=10.0, g=g)
        step = partial(
            sghmc.step,
            step_size=H,
            friction=10.0,
            integrator="semi_implicit",
            preconditioner=preconditioner,
            adapt=False,
        )
        squares, kinetic, _ = simulate(
            step, start(expected, learnt=learnt), target.gradient, 500, moments
        )
        assert_mean(squares, np.diag(expected))
        assert_mean(kinetic, g * expected[1, 1])


def test_the_papers_momentum_form():
    """Izmailov et al.: m <- beta m + sqrt(s) grad log p + noise, theta <- theta + sqrt(s) m / M."""
    beta, s, mass = 0.95, 3e-3, 2.0
    q, r, slope = jnp.array([0.3, -1.0]), jnp.array([0.5, 2.0]), jnp.array([4.0, -3.0])
    state = sghmc.State({"a": q}, {"a": r}, {"a": jnp.full(2, 1 / mass)})
    options = {
        "step_size": s / 2,
        "friction": (1 - beta) / math.sqrt(s),
        "integrator": "semi_implicit",
        "preconditioner": diagonal({"a": 1 / mass}),
    }
    ends = [
        sghmc.step(
            jax.random.key(0),
            state,
            lambda _: (jnp.zeros(()), {"a": slope}),
            temperature=temperature,
            **options,
        )[0]
        for temperature in (0.0, 1.0)
    ]
    m = beta * r - math.sqrt(s) * slope
    np.testing.assert_allclose(ends[0].momentum["a"], m, rtol=1e-5)
    np.testing.assert_allclose(ends[0].position["a"], q + math.sqrt(s) * m / mass, rtol=1e-5)
    noise = ends[1].momentum["a"] - m
    np.testing.assert_allclose(
        ends[1].position["a"], ends[0].position["a"] + math.sqrt(s) * noise / mass, rtol=1e-4
    )


# keys, dtypes, arguments ---------------------------------------------------------------------

POSITION = {"a": jnp.array([0.3, -0.8]), "b": jnp.ones((2, 2), jnp.bfloat16)}


def bowl(position):
    return jnp.ones(()), position


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_core_needs_no_dtype_promotion_and_reuses_no_key(integrator):
    with jax.numpy_dtype_promotion("strict"), jax.debug_key_reuse(True):
        preconditioner = rmsprop(eps=0.1)
        state = sghmc.init(jax.random.key(0), POSITION, preconditioner=preconditioner)
        new, _ = sghmc.step(
            jax.random.key(1),
            state,
            bowl,
            step_size=jnp.float32(0.1),
            friction=0.5,
            temperature=0.5,
            integrator=integrator,
            preconditioner=preconditioner,
            adapt=jnp.array(True),
            noise_estimate=0.1,
        )
        kind = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
        assert kind(new) == kind(state)


def test_noise_differs_between_keys_sites_and_elements():
    zeros = {"a": jnp.zeros(4), "b": jnp.zeros(4)}
    state = sghmc.State(zeros, zeros, ())
    draws = [
        sghmc.step(jax.random.key(seed), state, bowl, step_size=0.1, friction=1.0)[0].position
        for seed in (0, 1)
    ]
    values = np.concatenate([leaf for draw in draws for leaf in draw.values()])
    assert len(np.unique(values)) == 16


def test_unknown_integrator():
    state = sghmc.init(jax.random.key(0), POSITION)
    with pytest.raises(ValueError, match=r"must be one of \('baoab', 'semi_implicit'\), got 'eu"):
        sghmc.step(jax.random.key(0), state, bowl, step_size=0.1, friction=1.0, integrator="euler")
