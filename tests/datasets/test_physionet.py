"""PhysioNet 2012: published texts and hourly means, standardised over what was measured."""

import numpy as np
import pytest

from ppl_bnn import datasets
from ppl_bnn.datasets.physionet import STATIC, VARIABLES

HR, PH, WEIGHT = (VARIABLES.index(name) for name in ("HR", "pH", "Weight"))


def write(folder, name, stays):
    """A set in the published format: {record: (lines, died)}."""
    (folder / f"set-{name}").mkdir()
    outcomes = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
    for record, (lines, died) in stays.items():
        head = ["Time,Parameter,Value", f"00:00,RecordID,{record}"]
        (folder / f"set-{name}" / f"{record}.txt").write_text("\n".join([*head, *lines]) + "\n")
        outcomes.append(f"{record},6,1,5,-1,{died}")
    (folder / f"Outcomes-{name}.txt").write_text("\n".join(outcomes) + "\n")


@pytest.fixture
def texts(tmp_path):
    """Three small sets in the published format."""
    first = [
        "00:00,Age,60",
        "00:00,Gender,0",
        "00:00,Height,-1",
        "00:00,ICUType,4",
        "00:00,Weight,70",
    ]
    second = ["00:00,Age,80", "00:00,Gender,1", "00:00,Height,180", "00:00,ICUType,1"]
    a = {
        1: ([*first, "00:07,HR,60", "00:50,HR,80", "01:00,HR,-1", "48:00,HR,110"], 0),
        2: ([*second, "03:15,HR,90", "03:20,pH,7.4", "05:00,Weight,81"], 1),
    }
    write(tmp_path, "a", a)
    write(tmp_path, "b", {3: (first, 0)})
    write(tmp_path, "c", {4: ([*second, "02:30,HR,100"], 1), 5: (first, 0)})
    return tmp_path


def test_published_texts(texts):
    data = datasets.physionet2012(texts, check=False)
    x, mask, observed, static = data.x_train
    assert x.shape == observed.shape == (2, 48, 37) and mask.shape == (2, 48) and mask.all()
    # heart rates measured in set a, by the hour: 70 (the mean of two), 110, 90
    assert sorted(map(tuple, np.argwhere(observed[:, :, HR]))) == [(0, 0), (0, 47), (1, 3)]
    scaled = (np.array([70, 110, 90]) - 90) / np.std([70, 110, 90])
    np.testing.assert_allclose(x[[0, 0, 1], [0, 47, 3], HR], scaled, rtol=1e-6)
    assert observed[1, 3, PH] and x[1, 3, PH] == 0  # a single value is its own mean
    # a weight at the start is a measurement too
    assert observed[0, 0, WEIGHT] and observed[1, 5, WEIGHT] and observed.sum() == 6
    assert not x[~observed].any()
    # age, gender, height (missing: the mean), weight (missing), and the kind of unit
    np.testing.assert_allclose(static, [[-1, -1, 0, 0, 0, 0, 0, 1], [1, 1, 0, 0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(data.y_train, [0, 1])

    test = data.x_test
    assert test.x[0, 2, HR] == pytest.approx((100 - 90) / np.std([70, 110, 90]))
    np.testing.assert_array_equal(data.y_validation, [0])
    np.testing.assert_array_equal(data.y_test, [1, 0])


def test_a_subset_of_stays(texts):
    data = datasets.physionet2012(texts, check=False).subset(2, 1)
    assert data.x_test.observed.shape == (1, 48, 37) and data.x_test.static.shape == (1, 8)


class TestRefused:
    def test_too_few_stays(self, texts):
        with pytest.raises(ValueError, match="found 2 stays in set a, expected 4,000"):
            datasets.physionet2012(texts)

    def test_missing_set(self, texts):
        (texts / "Outcomes-c.txt").unlink()
        with pytest.raises(
            FileNotFoundError, match=r"needs .*Outcomes-c.txt. It comes from .*set-c"
        ):
            datasets.physionet2012(texts, check=False)

    def test_missing_stay(self, texts):
        (texts / "set-b" / "3.txt").unlink()
        with pytest.raises(
            FileNotFoundError, match=r"3.txt is missing, though .*Outcomes-b.txt has"
        ):
            datasets.physionet2012(texts, check=False)

    def test_broken_line(self, texts):
        path = texts / "set-a" / "1.txt"
        path.write_text(path.read_text() + "07:00,HR\n")
        with pytest.raises(ValueError, match=r"1.txt is corrupt.*line 12 is '07:00,HR'"):
            datasets.physionet2012(texts, check=False)

    def test_other_file(self, texts):
        (texts / "set-a" / "1.txt").write_text("<html>\n")
        with pytest.raises(ValueError, match="first line is not `Time,Parameter,Value`"):
            datasets.physionet2012(texts, check=False)

    def test_outcomes_without_deaths(self, texts):
        (texts / "Outcomes-a.txt").write_text("RecordID,SAPS-I\n1,6\n")
        with pytest.raises(ValueError, match=r"Outcomes-a.txt is corrupt.*In-hospital_death"):
            datasets.physionet2012(texts, check=False)


@pytest.mark.slow
def test_stored_hours(folder, raw):
    arrays = raw("clinical/physionet2012_hourly.npz")
    data = datasets.physionet2012(folder)
    deaths = [data.y_train.sum(), data.y_validation.sum(), data.y_test.sum()]
    assert deaths == [554, 568, 585]
    assert list(map(str, arrays["variables"])) == list(VARIABLES)
    assert len(arrays["static_names"]) == len(STATIC)
    x, mask, observed, static = data.x_train
    assert x.shape == (4000, 48, 37) and static.shape == (4000, 8) and mask.all()
    measured = np.isfinite(arrays["x"])
    np.testing.assert_array_equal(observed, measured[arrays["set_index"] == 0])
    assert measured.mean() == pytest.approx(0.203, abs=0.001)
    columns = [x[:, :, k][observed[:, :, k]] for k in range(37)]
    np.testing.assert_allclose([column.mean() for column in columns], 0, atol=1e-4)
    spread = np.array([column.std() for column in columns])
    assert ((np.abs(spread - 1) < 1e-4) | (spread == 0)).all()
    for part in (data.x_train, data.x_validation, data.x_test):
        assert all(np.isfinite(array).all() for array in part)
        np.testing.assert_array_equal(part.static[:, 4:].sum(axis=1), 1)
