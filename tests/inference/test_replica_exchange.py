"""Replica exchange: the swap's bias correction, and what swaps do for a chain."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_bnn.inference import replica_exchange
from ppl_bnn.inference.replica_exchange import swap_probability

TEMPERATURES = jnp.array([1.0, 4.0])
C = 1 - 1 / 4


def expected_probability(difference, variance, **options):
    """Over the noise of two estimates, each with `variance`, by quadrature."""
    sd = np.sqrt(2 * variance)
    noise = np.linspace(-9 * sd, 9 * sd, 20_001)
    density = np.exp(-0.5 * (noise / sd) ** 2)
    potential = jnp.stack([jnp.asarray(difference + noise), jnp.zeros(noise.size)])
    chances = swap_probability(potential, TEMPERATURES[:, None], variance, **options)[0]
    return float(np.sum(density * np.asarray(chances)) / np.sum(density))


@pytest.mark.parametrize("variance", [0.25, 1.0, 9.0])
def test_detailed_balance_in_expectation(variance):
    with jax.enable_x64(True):
        for difference in (0.1, 1.0, 3.0):
            up, down = (expected_probability(d, variance) for d in (difference, -difference))
            assert up / down == pytest.approx(np.exp(C * difference), rel=1e-6)


def test_without_the_correction_it_does_not_hold():
    with jax.enable_x64(True):
        up, down = (expected_probability(d, 9.0, correction=jnp.array(np.inf)) for d in (1.0, -1.0))
        assert up / down < 0.8 * np.exp(C)


def test_exact_potentials_swap_as_metropolis():
    potential = jnp.array([3.0, 1.0, 2.0])
    chances = swap_probability(potential, jnp.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(chances, [1.0, np.exp(-0.25)], rtol=1e-6)


def noisy_bowl(rng_key, sd):
    """Potential theta^2 / 2 with noise that each replica has for itself."""

    def potential(position):
        # the vectorised replicas share the key; the position makes their noise differ
        bits = jax.lax.bitcast_convert_type(position["a"].astype(jnp.float32), jnp.uint32)
        key = jax.random.fold_in(rng_key, bits)
        return position["a"] ** 2 / 2 + sd * jax.random.normal(key)

    return potential


@pytest.mark.parametrize("corrected", [True, False])
def test_variances_with_noisy_potentials(simulate, assert_mean, corrected):
    """Swaps leave both temperatures' distributions alone, but only with the correction."""
    with jax.enable_x64(True):
        h, sd, chains = 0.1, 2.0, 1000
        # where the swaps' target is what SGLD itself samples, its step is no source of bias
        temperatures = TEMPERATURES / (1 - h / 2)

        def gradient(rng_key, position):
            return position["a"] ** 2 / 2, position

        def step(rng_key, state, gradient):
            key_step, key_noise = jax.random.split(rng_key)
            return replica_exchange.step(
                key_step,
                state,
                gradient,
                step_size=h,
                temperatures=TEMPERATURES,
                noise_variance=sd**2 if corrected else 0.0,
                potential=lambda q: (1 - h / 2) * noisy_bowl(key_noise, sd / (1 - h / 2))(q),
            )

        spread = np.sqrt(np.asarray(temperatures))
        draws = np.random.default_rng(0).normal(size=(chains, 2)) * spread
        states = jax.vmap(replica_exchange.init)({"a": jnp.asarray(draws)})

        def record(states, info):
            return states.position["a"] ** 2, info.is_swapped

        values, is_swapped = simulate(step, states, gradient, 500, record)
        assert 0.1 < np.mean(is_swapped) < 0.9
        if corrected:
            assert_mean(values, spread**2)
        else:
            assert values[200:, :, 0].mean() > 1.1 * spread[0] ** 2


def double_well(rng_key, position):
    """Two wells, 8 temperatures deep, that differ a little."""
    return jax.value_and_grad(lambda p: 8 * (p["a"] ** 2 - 1) ** 2 + 0.5 * p["a"])(position)


@pytest.mark.slow
def test_swaps_carry_a_chain_between_wells(simulate, assert_mean):
    with jax.enable_x64(True):
        theta = np.linspace(-3, 3, 6001)
        weights = np.exp(-8 * (theta**2 - 1) ** 2 - 0.5 * theta)
        expected = np.sum(weights[theta > 0]) / np.sum(weights)
        temperatures = jnp.array([1.0, 2.5, 6.0])
        states = jax.vmap(replica_exchange.init)({"a": jnp.ones((500, 3))})

        def share(swap):
            step = partial(
                replica_exchange.step, step_size=1e-3, temperatures=temperatures, swap=swap
            )

            def record(states, info):
                return (states.position["a"][:, 0] > 0) + 0.0

            return simulate(step, states, double_well, 6000, record)[2000:]

        assert np.mean(share(jnp.array(False))) > 0.8
        assert_mean(share(True), expected, precision=0.05)


def test_neighbours_trade_places():
    positions = {"a": jnp.arange(5.0), "b": 10 + jnp.arange(10.0).reshape(5, 2)}
    state = replica_exchange.init(positions)

    def flat(position):
        return -position["a"], jax.tree.map(jnp.zeros_like, position)

    @jax.jit
    def step(rng_key, swap):
        return replica_exchange.step(
            rng_key, state, flat, step_size=0.0, temperatures=jnp.arange(1.0, 6.0), swap=swap
        )

    seen = set()
    for key in jax.random.split(jax.random.key(0), 30):
        new, info = step(key, True)  # the potential falls with the index: all want to swap
        order = np.asarray(new.position["a"]).astype(int)
        seen.add(tuple(order))
        np.testing.assert_array_equal(new.position["b"], positions["b"][order])
        np.testing.assert_array_equal(info.potential, -order.astype(np.float32))
        np.testing.assert_array_equal(info.is_swapped, info.is_attempted)
        assert info.swap_probability.shape == (4,)
    assert seen == {(1, 0, 3, 2, 4), (0, 2, 1, 4, 3)}
    new, info = step(jax.random.key(0), False)
    np.testing.assert_array_equal(new.position["a"], positions["a"])
    assert not np.any(info.is_attempted)


POSITIONS = {"a": jnp.ones((3, 2)), "b": jnp.ones((3, 2, 2), jnp.bfloat16)}


def bowl(position):
    return jnp.ones(()), position


def test_core_needs_no_dtype_promotion_and_reuses_no_key():
    with jax.numpy_dtype_promotion("strict"), jax.debug_key_reuse(True):
        state = replica_exchange.init(POSITIONS)
        new, _ = replica_exchange.step(
            jax.random.key(0),
            state,
            bowl,
            step_size=jnp.float32(0.1),
            temperatures=jnp.array([1.0, 2.0, 4.0]),
            noise_variance=0.5,
            swap=jnp.array(True),
        )
        kind = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
        assert kind(new) == kind(state)
        assert len(np.unique(np.asarray(new.position["a"]))) == 6


@pytest.mark.parametrize("temperatures", [jnp.ones(1), jnp.ones(2), jnp.ones((3, 1))])
def test_temperatures_that_are_not_one_for_each_replica(temperatures):
    with pytest.raises(ValueError, match=r"must list at least two, one for each replica"):
        replica_exchange.step(
            jax.random.key(0),
            replica_exchange.init(POSITIONS),
            bowl,
            step_size=0.1,
            temperatures=temperatures,
        )
