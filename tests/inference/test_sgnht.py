"""SGNHT's core: the friction it finds, temperatures, numbers of dimensions."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq

from ppl_bnn.inference import sgnht

INTEGRATORS = ("badodab", "euler")
THERMOSTATS = ("global", "per_parameter")


def with_friction(integrator, xi, lam, v, eps, diffusion):
    """Covariance of (theta, r) were xi constant, and the mean of r^2 that the thermostat sees."""
    kick, unit = np.array([[1.0, 0.0], [-eps * lam, 1.0]]), np.array([0.0, 1.0])
    half, whole = (np.array([[1.0, time], [0.0, 1.0]]) for time in (eps / 2, eps))
    if integrator == "euler":
        step = whole @ (kick - np.diag([0.0, eps * xi]))
        by_gradient, by_noise, injected = -eps * whole @ unit, whole @ unit, 2 * diffusion * eps
    else:
        decay = math.exp(-xi * eps)
        turn = half @ np.diag([1.0, decay]) @ half
        step, by_gradient, by_noise = turn @ kick, -eps * turn @ unit, half @ unit
        injected = diffusion * (1 - decay**2) / xi
    noise = v * np.outer(by_gradient, by_gradient) + injected * np.outer(by_noise, by_noise)
    covariance = solve_discrete_lyapunov(step, noise)
    seen = covariance[1, 1]
    if integrator == "badodab":
        seen = (seen + (kick @ covariance @ kick.T)[1, 1] + eps**2 * v) / 2
    return covariance, seen


def stationary(integrator, lam, v, eps, *, temperature=1.0, diffusion=1.0):
    """The constant xi at which r has temperature T, and the covariance of (theta, r) there.

    What a thermostat does whose mass is large; at finite mass it is off by order eps / mu.
    """

    def excess(xi):
        return with_friction(integrator, xi, lam, v, eps, diffusion)[1] - temperature

    first_order = (diffusion + eps * v / 2) / temperature
    xi = brentq(excess, 0.3 * first_order, 1.9 * first_order)
    return xi, with_friction(integrator, xi, lam, v, eps, diffusion)[0]


def start(covariance, xi, thermostat, num_chains, d, *, temperature=1.0, mass=1.0):
    """Chains in the stationary distribution for small steps, where xi ~ N(., T / mu)."""
    root, rng = np.linalg.cholesky(covariance), np.random.default_rng(1)
    draws = rng.normal(size=(num_chains, d, 2)) @ root.T
    shape, mu = ((num_chains,), mass * d) if thermostat == "global" else ((num_chains, d), mass)
    xi = xi + math.sqrt(temperature / mu) * jnp.asarray(rng.normal(size=shape))
    if thermostat == "per_parameter":
        xi = {"a": xi}
    return sgnht.State({"a": jnp.asarray(draws[..., 0])}, {"a": jnp.asarray(draws[..., 1])}, xi)


def record(states, info):
    square = jnp.mean(states.position["a"] ** 2, axis=-1)
    return square, info.kinetic_temperature, info.friction, info.virial


TEMPERATURES = (0.1, 1.0, 4.0)


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@pytest.mark.parametrize("integrator", ["badodab", pytest.param("euler", marks=pytest.mark.slow)])
@pytest.mark.parametrize("thermostat", THERMOSTATS)
def test_friction_found_with_minibatch_noise(
    location, simulate, assert_mean, integrator, thermostat
):
    with jax.enable_x64(True):
        d, target, eps = 10, location(d=10), 0.01
        lam, v = target.hessian[0, 0], target.noise[0, 0]
        expected = [
            stationary(integrator, lam, v, eps, temperature=t, diffusion=1.5) for t in TEMPERATURES
        ]

        def run(states, temperature):
            step = partial(
                sgnht.step,
                step_size=eps**2 / 2,
                temperature=temperature,
                diffusion=1.5,
                # xi, which is about 2.5 / T, relaxes at the rate T / (mass xi): in 1000 steps
                thermal_mass=4 * temperature**2,
                integrator=integrator,
            )
            return simulate(step, states, target.gradient, 2500, record)

        states = stack(
            [
                start(covariance, xi, thermostat, 100, d, temperature=t, mass=4 * t**2)
                for t, (xi, covariance) in zip(TEMPERATURES, expected, strict=True)
            ]
        )
        seen = jax.vmap(run)(states, jnp.array(TEMPERATURES))
        for i, (temperature, (xi, covariance)) in enumerate(
            zip(TEMPERATURES, expected, strict=True)
        ):
            square, kinetic, friction, virial = (values[i] for values in seen)
            first_order = (1.5 + eps * v / 2) / temperature
            assert xi == pytest.approx(first_order, rel=0.01 + eps * first_order)
            assert_mean(friction, xi, precision=0.02)
            assert_mean(square, covariance[0, 0], precision=0.02)
            assert_mean(virial, lam * covariance[0, 0], precision=0.02)
            if integrator == "euler":
                assert_mean(kinetic, temperature)


def test_first_order_friction():
    """E xi = (A + eps V / 2) / T, but for errors of order eps ("euler") or eps^2 ("badodab")."""
    for integrator, order in (("badodab", 2), ("euler", 1)):
        errors = []
        for eps in (0.01, 0.005):
            xi, _ = stationary(integrator, 50.0, 3 / eps, eps, temperature=2.0, diffusion=1.5)
            errors.append(xi / ((1.5 + 1.5) / 2.0) - 1)
        assert abs(errors[0]) < 0.03
        assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.1)


def oscillator(rng_key, position):
    return jnp.sum(position["a"] ** 2) / 2, position


@pytest.mark.parametrize("thermostat", THERMOSTATS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("d", [1, *(pytest.param(d, marks=pytest.mark.slow) for d in (5, 10)), 50])
def test_dimension(simulate, assert_mean, integrator, thermostat, d):
    with jax.enable_x64(True):
        # a heavy thermostat keeps the first-order scheme near the covariance at constant xi
        eps, mass = (0.05, 1.0) if integrator == "badodab" else (0.1, 50.0)
        xi, covariance = stationary(integrator, 1.0, 0.0, eps)
        step = partial(sgnht.step, step_size=eps**2 / 2, integrator=integrator, thermal_mass=mass)
        chains = 1000 if d < 10 else 2000 // d
        square, _, friction, virial = simulate(
            step, start(covariance, xi, thermostat, chains, d, mass=mass), oscillator, 3000, record
        )
        assert_mean(square, covariance[0, 0], precision=0.02)
        assert_mean(virial, covariance[0, 0], precision=0.02)
        assert_mean(friction, xi, precision=0.02)
        if integrator == "badodab":
            assert covariance[0, 0] == pytest.approx(1.0, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_variance_is_proportional_to_temperature(simulate, assert_mean, integrator):
    """With exact gradients and the same xi, so with A and mu proportional to T."""
    with jax.enable_x64(True):
        eps = 0.1
        xi, covariance = stationary(integrator, 1.0, 0.0, eps)

        def run(temperature):
            step = partial(
                sgnht.step,
                step_size=eps**2 / 2,
                integrator=integrator,
                temperature=temperature,
                diffusion=temperature,
                thermal_mass=20.0 * temperature,
            )
            states = start(covariance, xi, "global", 200, 10, mass=20.0)
            scale = partial(jax.tree.map, lambda leaf: jnp.sqrt(temperature) * leaf)
            states = sgnht.State(scale(states.position), scale(states.momentum), states.xi)
            return simulate(step, states, oscillator, 1500, record)

        seen = jax.vmap(run)(jnp.array(TEMPERATURES))
        for i, temperature in enumerate(TEMPERATURES):
            square, _, friction, _ = (values[i] for values in seen)
            assert_mean(square, temperature * covariance[0, 0], precision=0.02)
            assert_mean(friction, xi, precision=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("thermostat", THERMOSTATS)
def test_only_thermostats_per_parameter_absorb_uneven_noise(simulate, assert_mean, thermostat):
    with jax.enable_x64(True):
        eps, sd = 0.05, np.array([1.0, 10.0])

        def gradient(rng_key, position):
            noise = sd * jax.random.normal(rng_key, (2,))
            return jnp.zeros(()), {"a": position["a"] + noise}

        xis, covariances = zip(*(stationary("badodab", 1.0, s**2, eps) for s in sd), strict=True)
        states = start(np.eye(2), 2.0, thermostat, 1000, 2)
        if thermostat == "per_parameter":
            states = states._replace(xi={"a": jnp.tile(jnp.array(xis), (1000, 1))})
        square = simulate(
            partial(sgnht.step, step_size=eps**2 / 2),
            states,
            gradient,
            3000,
            lambda states, info: states.position["a"] ** 2,
        )
        if thermostat == "per_parameter":
            assert_mean(square[1000:], np.array([c[0, 0] for c in covariances]), precision=0.02)
        else:
            ratio = np.asarray(square[1000:]).mean((0, 1))
            assert ratio[0] < 0.7 and ratio[1] > 1.3


def test_exact_ornstein_uhlenbeck_of_any_sign():
    for xi in (-2.0, -1e-12, 0.0, 1e-12, 1e-4, 3.0):
        with jax.enable_x64(True):
            one, zero = {"a": jnp.ones(1)}, {"a": jnp.zeros(1)}
            options = ({"a": jnp.array(xi)}, jnp.array(0.5), jnp.array(1.5))
            kept = sgnht._ornstein_uhlenbeck(one, zero, *options)["a"][0]
            spread = sgnht._ornstein_uhlenbeck(zero, one, *options)["a"][0]
            expected = 1.5 * -math.expm1(-xi) / xi if xi else 1.5
            assert kept == pytest.approx(math.exp(-xi / 2))
            assert spread**2 == pytest.approx(expected)


@pytest.mark.parametrize("thermostat", THERMOSTATS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_temperature_zero_is_descent_with_friction(integrator, thermostat):
    position = {"a": jnp.array([0.3, -0.8])}
    first = sgnht.init(jax.random.key(0), position, temperature=0.0, thermostat=thermostat)

    def body(state, rng_key):
        options = {"step_size": 0.02, "temperature": 0.0, "integrator": integrator}
        return sgnht.step(rng_key, state, bowl, **options)[0], None

    last, _ = jax.lax.scan(body, first, jax.random.split(jax.random.key(1), 300))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, last.xi, first.xi))
    assert np.all(np.abs(last.position["a"]) < 1e-4)


# keys, dtypes, arguments ---------------------------------------------------------------------

POSITION = {"a": jnp.array([0.3, -0.8]), "b": jnp.ones((2, 2), jnp.bfloat16)}


def bowl(position):
    return jnp.ones(()), position


@pytest.mark.parametrize("thermostat", THERMOSTATS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_core_needs_no_dtype_promotion_and_reuses_no_key(integrator, thermostat):
    with jax.numpy_dtype_promotion("strict"), jax.debug_key_reuse(True):
        state = sgnht.init(jax.random.key(0), POSITION, thermostat=thermostat)
        new, _ = sgnht.step(
            jax.random.key(1),
            state,
            bowl,
            step_size=jnp.float32(0.1),
            temperature=0.5,
            integrator=integrator,
        )
        kind = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
        assert kind(new) == kind(state)


def test_noise_differs_between_keys_sites_and_elements():
    zeros = {"a": jnp.zeros(4), "b": jnp.zeros(4)}
    state = sgnht.State(zeros, zeros, jnp.ones(()))
    draws = [
        sgnht.step(jax.random.key(seed), state, bowl, step_size=0.1)[0].position for seed in (0, 1)
    ]
    values = np.concatenate([leaf for draw in draws for leaf in draw.values()])
    assert len(np.unique(values)) == 16


def test_unknown_choices():
    with pytest.raises(ValueError, match=r"`thermostat` must be one of .*, got 'local'"):
        sgnht.init(jax.random.key(0), POSITION, thermostat="local")
    state = sgnht.init(jax.random.key(0), POSITION)
    with pytest.raises(ValueError, match=r"`integrator` must be one of .*, got 'baoab'"):
        sgnht.step(jax.random.key(0), state, bowl, step_size=0.1, integrator="baoab")
