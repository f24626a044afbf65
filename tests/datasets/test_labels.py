"""Labels become 0..K-1 with their names kept; a class without rows is an error."""

import numpy as np
import pytest

from ppl_bnn.datasets import Dataset, encode_labels


@pytest.mark.parametrize(
    ("train", "test", "classes", "codes"),
    [
        (["no", "yes", "no"], ["yes"], ("no", "yes"), ([0, 1, 0], [1])),
        ([1, 2, 3, 1], [3], ("1", "2", "3"), ([0, 1, 2, 0], [2])),
        ([True, False], [True], ("False", "True"), ([1, 0], [1])),
        (np.array([2.0, 1.0]), np.array([1.0]), ("1", "2"), ([1, 0], [0])),
        (np.array(["b", "a"], object), ["a"], ("a", "b"), ([1, 0], [0])),
    ],
    ids=["text", "integers from 1", "booleans", "whole floats", "objects"],
)
def test_labels_of_any_kind(train, test, classes, codes, as_users_run):
    labels = encode_labels(train, test)
    assert labels.classes == classes
    np.testing.assert_array_equal(labels.train, codes[0])
    np.testing.assert_array_equal(labels.test, codes[1])
    assert labels.train.dtype == labels.test.dtype == np.int32


def test_given_classes_keep_their_order():
    labels = encode_labels(["b", "c", "a"], ["a"], classes=["c", "a", "b"])
    assert labels.classes == ("c", "a", "b")
    np.testing.assert_array_equal(labels.train, [2, 0, 1])
    np.testing.assert_array_equal(encode_labels([3, 8], [3], classes=[3, 8]).train, [0, 1])


def test_a_gap_names_the_class_that_is_missing():
    with pytest.raises(ValueError, match=r"no training row has the label 2.*classes=\[0, 1, 3\]"):
        encode_labels([0, 1, 3], [1])
    assert encode_labels([0, 1, 3], [1], classes=[0, 1, 3]).classes == ("0", "1", "3")


def test_a_class_without_training_rows():
    with pytest.raises(ValueError, match="`y_train` has no row of class 2, so nothing"):
        encode_labels([0, 1, 3], [1], classes=4)
    with pytest.raises(ValueError, match=r"no row of class 1 \('cat'\)"):
        encode_labels(["dog"], ["dog"], classes=["dog", "cat"])


def test_a_class_of_the_test_rows_only():
    with pytest.raises(ValueError, match="`y_test` has the label cat, which no training row has"):
        encode_labels(["dog", "cow"], ["cat"])
    with pytest.raises(ValueError, match="`y_test` has the label 4, which `classes` does not have"):
        encode_labels([0, 1], [4], classes=2)


def test_what_is_no_label(as_users_run):
    with pytest.raises(ValueError, match=r"`y_train` must hold labels of shape \(row,\)"):
        encode_labels(np.zeros((3, 2), int), [0])
    with pytest.raises(ValueError, match="not whole"):
        encode_labels([0.5, 1.0], [1.0])
    with pytest.raises(ValueError, match="different labels"):
        encode_labels([0, 1], [1], classes=[0, 0, 1])


def dataset(y_train, y_test, classes):
    x = [np.arange(len(y), dtype=float)[:, None] for y in (y_train, y_test)]
    return Dataset(x[0], np.asarray(y_train), x[1], np.asarray(y_test), classes=classes)


def test_a_dataset_refuses_labels_that_skip_a_class():
    with pytest.raises(ValueError, match=r"no row of class 2 \('c'\)"):
        dataset([0, 1, 3], [1], ("a", "b", "c", "d"))
    with pytest.raises(ValueError, match="`y_test` must hold labels from 0 to 1, got 0 to 2"):
        dataset([0, 1], [0, 2], ("a", "b"))
    with pytest.raises(ValueError, match="`y_train` must be integers"):
        dataset([0.0, 1.0], [0], ("a", "b"))


def test_a_dataset_needs_one_target_for_each_row():
    x, y = np.zeros((3, 2)), np.zeros(3)
    with pytest.raises(ValueError, match=r"`x_test`: \[3\], `y_test`: \[2\]"):
        Dataset(x, y, x, y[:2])


def test_a_dataset_is_read_only_and_leaves_its_source_alone():
    x, y = np.zeros((3, 2)), np.zeros(3)
    data = Dataset(x, y, x, y)
    with pytest.raises(ValueError, match="read-only"):
        data.x_train[0, 0] = 1.0
    x[0, 0] = 1.0


class TestSubset:
    y = np.repeat([0, 1, 2], [50, 5, 45])
    data = dataset(y, y[::5], ("a", "b", "c"))

    def test_classes_are_balanced_as_far_as_they_go(self):
        few = self.data.subset(13, 6)
        assert sorted(np.bincount(few.y_train)) == [4, 4, 5]
        assert sorted(np.bincount(few.y_test)) == [1, 2, 3]  # class 1 has a single test row
        np.testing.assert_array_equal(np.bincount(self.data.subset(41).y_train), [18, 5, 18])
        np.testing.assert_array_equal(self.data.subset(100).y_train, self.y)
        assert set(self.data.subset(3).y_train) == {0, 1, 2}

    def test_rows_keep_their_features_and_order(self):
        few = self.data.subset(13)
        rows = few.train_rows
        assert (np.diff(rows) > 0).all()
        np.testing.assert_array_equal(few.x_train[:, 0], rows)
        np.testing.assert_array_equal(few.y_train, self.y[rows])
        np.testing.assert_array_equal(few.y_test, self.data.y_test)
        np.testing.assert_array_equal(few.subset(4).train_rows, few.subset(4).x_train[:, 0])

    def test_the_seed_fixes_the_rows(self):
        first, again, other = (self.data.subset(12, seed=s).train_rows for s in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_too_few_and_too_many(self):
        with pytest.raises(ValueError, match="at least 3, one row for each class, got 2"):
            self.data.subset(2)
        with pytest.raises(ValueError, match="between 1 and 100, got 101"):
            self.data.subset(101)

    def test_regression(self):
        y = np.linspace(0, 1, 30)
        data = Dataset(y[:, None], y, y[:, None], y)
        few = data.subset(10, 5, seed=3)
        assert len(set(few.train_rows)) == 10 and len(few.y_test) == 5
        np.testing.assert_array_equal(few.x_train[:, 0], few.y_train)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", None, "b"], "no label in 1 rows, the first of them row 1"),
        (np.array(["a", float("nan")], object), "no label in 1 rows"),
        ([0.0, np.inf], "must hold class labels, got"),
        ([0.0, 1e20], "must hold class labels, got 1e"),
        ([0, 10**8], "no training row has the label 1, 2, 3"),
    ],
)
def test_labels_that_are_missing_or_far_apart(labels, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        encode_labels(labels, labels[:1])


def test_objects_that_are_integers_are_ordered_as_numbers():
    labels = encode_labels(np.array(range(11), object), [10])
    assert labels.classes[2] == "2" and labels.test[0] == 10
