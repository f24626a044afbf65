"""IMDB: three layouts, the paper's preparation, and files that are not what they should be."""

import csv
import gzip
import os

import numpy as np
import pytest

from ppl_bnn import datasets
from ppl_bnn.datasets.text import encode, pad, vocabulary, words


def test_the_last_tokens_count_and_short_reviews_have_zeros_in_front():
    np.testing.assert_array_equal(
        pad([[5, 6, 7, 8], [9], []], 3), [[6, 7, 8], [0, 0, 9], [0, 0, 0]]
    )


def test_words_and_vocabulary():
    text = words("It's GOOD.<br /><br />Good, 10/10!")
    assert text == ["it's", "good", "good", "10", "10"]
    known = vocabulary([text, ["good", "bad"]], 5)
    assert known == ("<pad>", "<unk>", "good", "10", "bad")
    np.testing.assert_array_equal(encode([["bad", "it's", "good"]], known)[0], [4, 1, 2])


def review(value):
    """A list of tokens that tells which review it is."""
    return [value, 1, value + 1]


@pytest.fixture
def keras(tmp_path):
    """A small file as Keras distributes it: ten reviews in each half."""
    halves = {}
    for part, first in (("train", 100), ("test", 200)):
        reviews = np.empty(10, object)
        reviews[:] = [review(first + 10 * i) for i in range(10)]
        halves |= {f"x_{part}": reviews, f"y_{part}": np.arange(10) % 2}
    np.savez(tmp_path / "imdb.npz", **halves)
    return tmp_path


def test_keras_file_is_prepared_as_keras_does(keras):
    data = datasets.imdb(keras, num_words=250, length=3, check=False)
    rng = np.random.RandomState(113)
    order = [np.arange(10), np.arange(10)]
    for rows in order:
        rng.shuffle(rows)
    expected = []
    for first, rows in zip((100, 200), order, strict=True):
        ids = [[1, *(w + 3 for w in review(first + 10 * i))] for i in rows]
        expected.append([[w if w < 250 else 2 for w in tokens] for tokens in ids])
    expected = [[tokens[-3:] for tokens in half] for half in expected]  # of four
    np.testing.assert_array_equal(data.x_train, expected[0][:8])
    np.testing.assert_array_equal(data.x_validation, expected[0][8:])
    np.testing.assert_array_equal(data.x_test, expected[1])
    np.testing.assert_array_equal(data.y_train, order[0][:8] % 2)
    np.testing.assert_array_equal(data.test_rows, order[1])
    assert (data.x_test == 2).any() and data.x_test.max() < 250


class TestRefusedKerasFile:
    def test_other_content(self, keras):
        with pytest.raises(
            ValueError, match=r"SHA-256 of its content is .*, expected 69664113be75"
        ):
            datasets.imdb(keras)

    def test_pickled_code_does_not_run(self, keras, tmp_path):
        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "attacked"),)

        with np.load(keras / "imdb.npz", allow_pickle=True) as arrays:
            changed = dict(arrays)
        changed["x_train"][0] = Attack()
        np.savez(keras / "imdb.npz", **changed)
        with pytest.raises(ValueError, match=r"x_train cannot be read .*names posix.mkdir"):
            datasets.imdb(keras, check=False)
        assert not (tmp_path / "attacked").exists()

    @pytest.mark.parametrize("value", [["a"], (1, 2), 3], ids=["text", "tuple", "number"])
    def test_no_lists_of_integers(self, value, keras):
        with np.load(keras / "imdb.npz", allow_pickle=True) as arrays:
            changed = dict(arrays)
        changed["x_test"][4] = value
        np.savez(keras / "imdb.npz", **changed)
        with pytest.raises(ValueError, match="entry 4 of x_test is no list of integers"):
            datasets.imdb(keras, check=False)

    def test_truncated(self, keras):
        path = keras / "imdb.npz"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(ValueError, match=r"imdb.npz is corrupt"):
            datasets.imdb(keras, check=False)


@pytest.fixture(scope="module")
def reviews(folder):
    """The first reviews of each class and half: (split, label, number, rating, text)."""
    path = folder / "text" / "imdb_small.csv.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if int(row["id"]) < 25]


def test_published_texts(reviews, tmp_path):
    for row in reviews:
        sentiment = "pos" if row["label"] == "1" else "neg"
        place = tmp_path / "aclImdb" / row["split"] / sentiment
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{row['id']}_{row['rating']}.txt").write_text(row["text"], encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"aclImdb is corrupt.*found 50 training reviews, expected"
    ):
        datasets.imdb(tmp_path)
    data = datasets.imdb(tmp_path, num_words=500, length=60, check=False)
    assert data.x_train.shape == (40, 60) and data.x_validation.shape == (10, 60)
    assert data.features[:3] == ("<pad>", "<unk>", "the") and len(data.features) == 500

    # row i of the source: negative reviews by their numbers, then positive ones
    ordered = sorted(
        (row for row in reviews if row["split"] == "train"),
        key=lambda row: (row["label"], int(row["id"])),
    )
    for tokens, label, row in zip(data.x_train, data.y_train, data.train_rows, strict=True):
        assert label == int(ordered[row]["label"])
        expected = [w if w in data.features else "<unk>" for w in words(ordered[row]["text"])[-60:]]
        assert [data.features[i] for i in tokens if i] == expected

    for file in (tmp_path / "aclImdb" / "test" / "pos").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="25 reviews in neg and 0 in pos"):
        datasets.imdb(tmp_path, check=False)


@pytest.mark.slow
def test_stored_tokens(folder, reviews):
    data = datasets.imdb(folder)
    assert data.x_train.shape == (20_000, 100) and data.x_test.shape == (25_000, 100)
    assert len(data.y_validation) == 5_000 and data.y_test.sum() == 12_500
    assert abs(data.y_train.mean() - 0.5) < 0.02 and data.x_train.max() < 20_000
    shorter = datasets.imdb(folder, num_words=1000, length=50)
    expected = np.where(data.x_train < 1000, data.x_train, 1)[:, 50:]
    np.testing.assert_array_equal(shorter.x_train, expected)

    # the texts at hand, tokenised here, are among them: row i is by label, then number
    known = {row: i for i, row in enumerate(data.train_rows)}
    ids = {word: i for i, word in enumerate(data.features)}
    found = 0
    for row in (r for r in reviews if r["split"] == "train"):
        source = int(row["label"]) * 12_500 + int(row["id"])
        if source in known:
            tokens = [ids.get(word, 1) for word in words(row["text"])]
            np.testing.assert_array_equal(data.x_train[known[source]], pad([tokens], 100)[0])
            found += 1
    assert found > 25
    with pytest.raises(ValueError, match="`num_words` must be at most 20,000"):
        datasets.imdb(folder, num_words=20_001)
