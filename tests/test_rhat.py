import arviz as az
import numpy as np
import pytest
import xarray as xr

from ppl_bnn.rhat import rhat


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 51, 3, 2))
    values[2, :, 1] += 2.0  # a chain elsewhere
    values[:, :, 2, 0] *= np.arange(1, 5)[:, None]  # chains of different spread
    values[:, :, 2, 1] = np.round(values[:, :, 2, 1])  # ties
    return values


def test_rank_is_arviz(draws):
    ours = rhat(draws).variables["x"]
    theirs = az.rhat(xr.Dataset({"x": (("chain", "draw", "a", "b"), draws)}))["x"].values
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert theirs.max() > 1.1


def test_rank_of_one_chain_compares_its_halves():
    drift = np.linspace(0, 5, 200) + np.random.default_rng(0).normal(size=200)
    assert rhat(drift[None]).max > 1.5
    assert rhat(np.random.default_rng(0).normal(size=(1, 200))).max < 1.05


def test_izmailov_by_hand():
    # Chain means 2 and 4, so B/n = 2; variances within 2/3 and 8/3, so W = 5/3.
    draws = np.array([[1.0, 2.0, 3.0, 2.0], [2.0, 6.0, 4.0, 4.0]])
    within = np.mean([0.5, 2.0])
    expected = 3 / 2 * (within + 2.0) / within - 3 / (2 * 4)
    result = rhat(draws, "izmailov")
    assert result.max == pytest.approx(expected, rel=1e-12)
    assert "Izmailov" in str(result) and "ArviZ" not in str(result)


def test_izmailov_of_independent_draws_is_near_one():
    draws = np.random.default_rng(0).normal(size=(4, 20_000, 5))
    np.testing.assert_allclose(rhat(draws, "izmailov").variables["x"], 1.0, atol=2e-3)


def test_izmailov_needs_two_chains(draws):
    with pytest.raises(ValueError, match=r"needs at least 2, but 'x' has 1.*method='rank'"):
        rhat(draws[:1], "izmailov")


def test_constant_and_nonfinite_are_counted_and_never_nan(draws):
    draws[:, :, 0, 0] = 0.1
    draws[:, :, 0, 1] = np.arange(4)[:, None]
    draws[1, 3, 1, 0] = np.nan
    for method in ("rank", "izmailov"):
        result = rhat(draws, method)
        assert (result.num_constant, result.num_nonfinite) == (1, 1)
        assert result.values.shape == (4,)
        assert not np.isnan(result.values).any()
        # Every chain frozen at a place of its own is as far from agreement as can be.
        assert result.worst(1) == [("x", (0, 1), np.inf)]
        assert "1 constant" in str(result) and "1 with NaN" in str(result)


def test_all_constant():
    result = rhat(np.ones((2, 10, 3)))
    assert result.num_constant == 3
    assert result.values.size == 0 and result.worst() == []


def test_two_valued_draws_agree():
    # All draws lie as far from the median, so their distances are constant.
    draws = np.tile([0.0, 1.0], (4, 50))
    assert rhat(draws).max == pytest.approx(1.0, abs=0.02)


def test_share_and_dictionary(draws):
    result = rhat({"a": draws[..., 0, 0], "b": draws[..., 1, :]})
    assert result.variables["a"].shape == () and result.variables["b"].shape == (2,)
    assert result.share_below(1.1) == pytest.approx(1 / 3)
    assert sorted(entry[:2] for entry in result.worst(2)) == [("b", (0,)), ("b", (1,))]
    assert result.worst()[2] == ("a", (), pytest.approx(float(result.variables["a"])))


@pytest.mark.parametrize(
    ("draws", "method", "message"),
    [
        (np.ones((2, 3)), "rank", "at least 4 draws"),
        (np.ones((2, 9)), "split", "'split'"),
    ],
)
def test_bad_input(draws, method, message):
    with pytest.raises(ValueError, match=message):
        rhat(draws, method)


def test_other_types():
    with pytest.raises(TypeError, match="dictionary of such arrays"):
        rhat([1.0, 2.0])
