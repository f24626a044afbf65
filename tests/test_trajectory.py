import math

import pytest

import ppl_bnn


def test_quarter_turn():
    assert ppl_bnn.trajectory_length(2.0) == pytest.approx(math.pi)


def test_steps_are_rounded_to_the_nearest_and_at_least_one():
    assert ppl_bnn.num_leapfrog_steps(1.0, 0.3) == 3
    assert ppl_bnn.num_leapfrog_steps(1.0, 0.28) == 4
    assert ppl_bnn.num_leapfrog_steps(0.1, 5.0) == 1


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_bad_scales(scale):
    with pytest.raises(ValueError, match="`prior_scale` must be positive and finite"):
        ppl_bnn.trajectory_length(scale)


@pytest.mark.parametrize(("length", "step"), [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_bad_steps(length, step):
    with pytest.raises(ValueError, match="must be positive"):
        ppl_bnn.num_leapfrog_steps(length, step)
