"""Tables through scikit-learn: those it ships, and OpenML with a stand-in for the network."""

import sys
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
from sklearn.utils import Bunch

from ppl_bnn import datasets


@pytest.mark.parametrize(
    ("name", "shape", "num_classes"),
    [
        ("diabetes", (442, 10), 0),
        ("breast_cancer", (569, 30), 2),
        ("digits", (1797, 64), 10),
        ("wine", (178, 13), 3),
        ("iris", (150, 4), 3),
    ],
)
def test_shipped_tables(name, shape, num_classes):
    data = datasets.scikit_learn(name)
    whole = getattr(sklearn.datasets, f"load_{name}")()
    assert whole.data.shape == shape
    assert len(data.x_train) + len(data.x_test) == shape[0] and len(data.classes) == num_classes
    np.testing.assert_array_equal(data.x_test, whole.data[data.test_rows])
    np.testing.assert_array_equal(data.y_train, whole.target[data.train_rows])
    assert len(data.features) == shape[1]
    if num_classes:
        shares = [np.bincount(y) / len(y) for y in (data.y_train, data.y_test)]
        np.testing.assert_allclose(*shares, atol=0.02)
    again, other = datasets.scikit_learn(name), datasets.scikit_learn(name, seed=1)
    np.testing.assert_array_equal(data.test_rows, again.test_rows)
    assert not np.array_equal(data.test_rows, other.test_rows)


def test_unknown_table():
    with pytest.raises(ValueError, match=r"one of diabetes, .*got 'boston'"):
        datasets.scikit_learn("boston")


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        datasets.scikit_learn("iris")


class TestOpenML:
    @pytest.fixture
    def answer(self, monkeypatch):
        """``answer(bunch_or_error)``: what a fetch gives; the arguments of the fetch."""

        def stand_in(result):
            asked = SimpleNamespace()

            def fetch_openml(name, **options):
                asked.name, asked.options = name, options
                if isinstance(result, Exception):
                    raise result
                return result

            monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch_openml)
            return asked

        return stand_in

    @staticmethod
    def bunch(target, data=None, **more):
        rng = np.random.default_rng(0)
        data = rng.normal(size=(20, 2)) if data is None else data
        columns = {"feature_names": ["a", "b"], "target_names": ["y"]}
        return Bunch(data=data, target=target, **columns, **more)

    def test_regression(self, answer):
        table = self.bunch(np.arange(20.0))
        asked = answer(table)
        data = datasets.openml("airfoil", version=2, split=1, cache="here")
        assert asked.name == "airfoil"
        assert asked.options["version"] == 2 and asked.options["data_home"] == "here"
        train, test = datasets.standard_split(20, 1)
        np.testing.assert_array_equal(data.x_train, table.data[train])
        np.testing.assert_array_equal(data.y_test, table.target[test])
        assert data.features == ("a", "b") and data.targets == ("y",) and not data.classes

    def test_classification(self, answer):
        target = np.array(["no", "yes"] * 10, object)
        answer(self.bunch(target, categories={"y": ["no", "yes"]}))
        data = datasets.openml("churn", version=1)
        assert data.classes == ("no", "yes")
        np.testing.assert_array_equal(data.y_train, target[data.train_rows] == "yes")

    def test_offline(self, answer):
        answer(URLError("no route to host"))
        with pytest.raises(
            ConnectionError, match=r"version 1 of 'churn'.*no route.*Go online once"
        ):
            datasets.openml("churn", version=1)

    def test_categories_and_missing_values(self, answer):
        answer(self.bunch(np.arange(20.0), categories={"b": ["red", "green"]}))
        with pytest.raises(ValueError, match=r"columns of categories \(b\).*OneHotEncoder"):
            datasets.openml("cars", version=1)
        answer(self.bunch(np.arange(20.0), data=np.full((20, 2), np.nan)))
        with pytest.raises(ValueError, match=r"40 missing values.*SimpleImputer"):
            datasets.openml("cars", version=1)
