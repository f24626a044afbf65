"""The UCI tables: rows, splits, scores in original units, and what is refused."""

import numpy as np
import pytest

from ppl_bnn import datasets, metrics
from ppl_bnn.datasets.uci import TABLES

ROWS = {
    "boston": (506, 13),
    "concrete": (1030, 8),
    "energy": (768, 8),
    "kin8nm": (8192, 8),
    "naval": (11934, 16),
    "power": (9568, 4),
    "protein": (45730, 9),
    "wine-red": (1599, 11),
    "wine-white": (4898, 11),
    "yacht": (308, 6),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_and_splits_are_those_stored(name, folder, raw):
    stored = raw("uci/splits.npz").get(name)
    table = raw(f"uci/{name}.npz")
    num_rows, num_columns = ROWS[name]
    assert TABLES[name].splits == (20 if stored is None else len(stored))
    for split in range(TABLES[name].splits):
        train, test = datasets.standard_split(num_rows, split)
        if stored is not None:
            np.testing.assert_array_equal(test, stored[split])
        np.testing.assert_array_equal(np.sort(np.append(train, test)), np.arange(num_rows))
        assert len(train) == round(0.9 * num_rows)
    data = datasets.uci(name, split, folder)
    assert data.x_train.shape == (len(train), num_columns)
    np.testing.assert_array_equal(data.x_train, table["x"][train])
    np.testing.assert_array_equal(data.y_train, table["y"][train])
    np.testing.assert_array_equal(data.x_test, table["x"][test])
    np.testing.assert_array_equal(data.y_test, table["y"][test])
    np.testing.assert_array_equal(data.train_rows, train)
    ordered = data.in_source_order()
    np.testing.assert_array_equal(ordered.y_test, table["y"][np.sort(test)])
    assert len(data.features) == num_columns and len(data.targets) == 1


def least_squares(data):
    """Mean and variance of least squares, and its predictions at the test rows."""
    with_one = [np.column_stack([x, np.ones(len(x))]) for x in (data.x_train, data.x_test)]
    weights = np.linalg.lstsq(with_one[0], data.y_train, rcond=None)[0]
    variance = np.mean((with_one[0] @ weights - data.y_train) ** 2)
    return with_one[1] @ weights, variance


# mean test RMSE of least squares over the standard splits, as published beside the splits
@pytest.mark.parametrize(
    ("name", "published"),
    [("boston", 4.59), ("concrete", 10.31), ("energy", 3.06), ("yacht", 8.97), ("wine-red", 0.654)],
)
def test_scores_of_least_squares_in_original_units(name, published, folder):
    errors = []
    for split in range(20):
        original = datasets.uci(name, split, folder)
        data, units = datasets.standardize(original)
        # least squares is equivariant, so both ways must give one fit
        mean, variance = least_squares(original)
        scaled_mean, scaled_variance = least_squares(data)
        residuals = mean - original.y_test
        rmse = np.sqrt(np.mean(residuals**2))
        nll = np.mean(0.5 * np.log(2 * np.pi * variance) + residuals**2 / (2 * variance))
        scaled_nll = metrics.moment_matched_nll(
            scaled_mean, np.full_like(scaled_mean, scaled_variance), data.y_test
        )
        assert units.rmse(scaled_mean, data.y_test) == pytest.approx(rmse, rel=1e-9)
        assert units.nll(scaled_nll) == pytest.approx(nll, rel=1e-9)
        assert units.log_density(-scaled_nll) == pytest.approx(-nll, rel=1e-9)
        np.testing.assert_allclose(units.location(scaled_mean), mean, rtol=1e-8)
        assert units.variance(scaled_variance) == pytest.approx(variance, rel=1e-9)
        errors.append(rmse)
    assert np.mean(errors) == pytest.approx(published, abs=0.0051 if published > 1 else 0.00051)


def test_naval_has_two_constant_columns(folder):
    with pytest.warns(UserWarning, match="naval: constant over the training rows.*T1, P1"):
        data, _ = datasets.standardize(datasets.uci("naval", 0, folder))
    constant = [data.features.index("T1"), data.features.index("P1")]
    assert not data.x_train[:, constant].any() and not data.x_test[:, constant].any()
    others = np.delete(data.x_train, constant, axis=1)
    np.testing.assert_allclose(others.std(axis=0), 1, rtol=1e-6)


def test_reference_layout_gives_the_same(folder, tmp_path):
    expected = datasets.uci("yacht", 3, folder)
    whole = np.empty((308, 7))
    for part in ("train", "test"):
        rows = getattr(expected, f"{part}_rows")
        whole[rows] = np.column_stack(
            [getattr(expected, f"x_{part}"), getattr(expected, f"y_{part}")]
        )
    place = tmp_path / "UCI_Datasets" / "yacht" / "data"
    place.mkdir(parents=True)
    np.savetxt(place / "data.txt", whole, fmt="%.17g")
    np.savetxt(place / "index_features.txt", np.arange(6))
    np.savetxt(place / "index_target.txt", [6])
    data = datasets.uci("yacht", 3, tmp_path)
    np.testing.assert_array_equal(data.x_test, expected.x_test)
    np.testing.assert_array_equal(data.y_train, expected.y_train)

    (place / "index_target.txt").write_text("7\n")
    with pytest.raises(ValueError, match=r"data.txt is corrupt.*index_target.txt"):
        datasets.uci("yacht", 3, tmp_path)


class TestRefused:
    @pytest.fixture
    def copy(self, raw, tmp_path):
        """``copy(**changes)``: a folder with the yacht table, changed."""

        def save(**changes):
            (tmp_path / "uci").mkdir(exist_ok=True)
            arrays = raw("uci/yacht.npz") | changes
            np.savez(tmp_path / "uci" / "yacht.npz", **arrays)
            return tmp_path

        return save

    def test_unknown_name(self, folder):
        with pytest.raises(ValueError, match=r"one of boston, concrete.*got 'yachts'"):
            datasets.uci("yachts", 0, folder)

    @pytest.mark.parametrize(("name", "split", "last"), [("yacht", 20, 19), ("protein", 5, 4)])
    def test_split_that_is_not_standard(self, name, split, last, folder):
        with pytest.raises(ValueError, match=f"between 0 and {last}, got {split}"):
            datasets.uci(name, split, folder)

    def test_other_rows(self, copy, raw):
        table = raw("uci/yacht.npz")
        with pytest.raises(ValueError, match=r"yacht.npz is corrupt.*shape \(307, 6\).*\(308, 6\)"):
            datasets.uci("yacht", 0, copy(x=table["x"][1:], y=table["y"][1:]))

    def test_other_order(self, copy, raw):
        table = raw("uci/yacht.npz")
        changed = copy(x=table["x"][::-1], y=table["y"][::-1])
        with pytest.raises(ValueError, match=r"MD5 of its content is \w{32}, expected \w{32}"):
            datasets.uci("yacht", 0, changed)
        data = datasets.uci("yacht", 0, changed, check=False)
        np.testing.assert_array_equal(data.x_train, table["x"][::-1][data.train_rows])

    def test_truncated_file(self, copy):
        path = copy() / "uci" / "yacht.npz"
        path.write_bytes(path.read_bytes()[:-500])
        with pytest.raises(ValueError, match=r"yacht.npz is corrupt.*no whole .npz file"):
            datasets.uci("yacht", 0, path.parents[1])

    def test_flipped_byte(self, copy):
        path = copy() / "uci" / "yacht.npz"
        content = bytearray(path.read_bytes())
        content[2000] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"yacht.npz is corrupt"):
            datasets.uci("yacht", 0, path.parents[1])

    def test_missing_array(self, tmp_path):
        (tmp_path / "uci").mkdir()
        np.savez(tmp_path / "uci" / "yacht.npz", x=np.zeros((308, 6)))
        with pytest.raises(ValueError, match=r"no array named y"):
            datasets.uci("yacht", 0, tmp_path)

    def test_pickled_objects_are_not_read(self, tmp_path):
        (tmp_path / "uci").mkdir()
        np.savez(tmp_path / "uci" / "yacht.npz", x=np.array([{}]), y=np.zeros(1))
        with pytest.raises(ValueError, match=r"yacht.npz is corrupt.*allow_pickle=False"):
            datasets.uci("yacht", 0, tmp_path)
