import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_bnn import schedules

ALL = {
    "constant": schedules.constant(0.1),
    "polynomial": schedules.polynomial(0.1, 10.0, 0.55),
    "warm_down": schedules.warm_down(0.1, 0.01, 100),
    "cyclical": schedules.cyclical(0.1, 50),
}


@pytest.mark.parametrize("name", ALL)
def test_schedules_trace_and_vectorise(name):
    steps = jnp.arange(120)
    with jax.numpy_dtype_promotion("strict"):
        values = jax.jit(jax.vmap(lambda t: jnp.asarray(ALL[name](t)) * 1.0))(steps)
    one_by_one = [float(ALL[name](t)) for t in range(120)]
    np.testing.assert_allclose(values, one_by_one, rtol=1e-5, atol=1e-8)
    assert np.all(values > 0)


def test_polynomial():
    schedule = schedules.polynomial(0.1, b=10.0, gamma=0.5)
    for t in (0, 90, 990):
        assert float(schedule(t)) == pytest.approx(0.1 / math.sqrt(10 + t))


def test_warm_down():
    schedule = schedules.warm_down(0.1, 0.02, 100)
    assert float(schedule(0)) == pytest.approx(0.1)
    assert float(schedule(50)) == pytest.approx(0.06)
    assert float(schedule(100)) == float(schedule(5000)) == pytest.approx(0.02)


def test_cyclical_is_the_papers():
    num_steps, num_cycles = 100, 4
    length = math.ceil(num_steps / num_cycles)
    schedule = schedules.cyclical(0.5, length, exploration=0.8, kept=0.9)
    for k in range(1, num_steps + 1):
        share = ((k - 1) % length) / length
        expected = 0.25 * (math.cos(math.pi * share) + 1)
        assert float(schedule(k - 1)) == pytest.approx(expected, rel=1e-5)
        assert bool(schedule.is_sampling(k - 1)) == (share >= 0.8)
        assert bool(schedule.is_kept(k - 1)) == (share >= 0.9)


@pytest.mark.parametrize("length", [10, 30, 50, 700])
def test_stages_begin_at_whole_steps(length):
    for tenths in range(10):
        schedule = schedules.cyclical(0.1, length, exploration=tenths / 10)
        stages = [bool(schedule.is_sampling(t)) for t in range(length)]
        assert stages == [10 * t >= tenths * length for t in range(length)]
        assert stages == [bool(schedule.is_kept(t)) for t in range(length)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.constant(0.0), "`step_size` must be positive and finite, got 0.0"),
        (lambda: schedules.constant(math.nan), "`step_size` must be positive and finite, got nan"),
        (lambda: schedules.polynomial(-1.0), "`a` must be positive"),
        (lambda: schedules.polynomial(1.0, 0.0), "`b` must be positive"),
        (lambda: schedules.polynomial(1.0, gamma=1.5), "`gamma` must be at most 1, got 1.5"),
        (lambda: schedules.warm_down(0.1, 0.2, 10), "`final` must be at most `initial`"),
        (lambda: schedules.warm_down(0.2, 0.1, 0), "`num_steps` must be a whole number"),
        (lambda: schedules.cyclical(0.1, 0), "`cycle_length` must be a whole number"),
        (lambda: schedules.cyclical(0.1, 2.5), "`cycle_length` must be a whole number"),
        (
            lambda: schedules.cyclical(0.1, 10, exploration=1.0),
            r"`exploration` must be in \[0, 1\), a share of the cycle, got 1.0",
        ),
        (lambda: schedules.cyclical(0.1, 10, kept=0.1), r"`kept` must be in \[0.25, 1\)"),
        (
            lambda: schedules.cyclical(0.1, 10, exploration=0.95),
            "keeps no draw, with `kept` 0.95: use a longer cycle or a `kept` of at most 0.9",
        ),
    ],
)
def test_bad_arguments(as_users_run, make, message):
    with pytest.raises(ValueError, match=message):
        make()
