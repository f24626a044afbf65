"""The IMDB reviews as token ids, prepared as for the full-batch HMC study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ppl_bnn.datasets.dataset import Dataset, names
from ppl_bnn.datasets.files import check_digest, check_size, corrupt, find, read_npz
from ppl_bnn.datasets.images import Folder
from ppl_bnn.datasets.pickled_lists import read_pickled_lists
from ppl_bnn.datasets.text import UNKNOWN, encode, pad, vocabulary, words

ORIGIN = (
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb.npz, or "
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz (unpacked)"
)
KERAS_SHA256 = "69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f"
KERAS_SEED = 113
# Keras shifts word ranks to make room for padding, start of the review, and unknown words
KERAS_START, KERAS_UNKNOWN, KERAS_SHIFT = 1, 2, 3
PER_SPLIT = 25_000
VALIDATION = 5_000


class _Half(NamedTuple):
    """Tokens and labels of the training or the test reviews, and their positions in the source."""

    tokens: Sequence[Sequence[int] | np.ndarray]
    labels: np.ndarray
    rows: np.ndarray


def imdb(
    folder: Folder = None, *, num_words: int = 20_000, length: int = 100, check: bool = True
) -> Dataset:
    """25,000 training and 25,000 test film reviews as token ids; class 1 is a positive one.

    As Izmailov et al. (2021): the first 20,000 training reviews in Keras's shuffled order train,
    the other 5,000 are for validation; the last 100 tokens of each count, shorter reviews have
    zeros in front.

    Parameters
    ----------
    folder
        Holds one of these, looked for in this order; by default the folder that the environment
        variable PPL_BNN_DATA names.

        - ``imdb.npz`` as Keras distributes it: the paper's very tokens. 0 is padding, 1 the start
          of a review, 2 an unknown word. Its lists are read without running what else may be in it.
        - ``aclImdb``, the published texts: words are runs of ``[a-z0-9']`` in lower case, and the
          vocabulary is the most frequent ones of the training reviews. 0 is padding, 1 an unknown
          word, there is no start token, and reviews are shuffled with Keras's seed from the order
          (label, number). So tokens and the choice of the 20,000 differ from Keras's.
        - ``text/imdb_tokens.npz``: those tokens, stored (at most 20,000 words).
    num_words
        Token ids are below this.
    length
        Tokens of a review.
    check
        Compare sizes, and the checksum of Keras's file, with the published ones.

    Returns
    -------
    Dataset
        With `x_train` of shape (review, length), int32; `features` are the words by their ids
        (none with Keras's file, which has no words).

    Raises
    ------
    FileNotFoundError
        If none of them is there; says where they come from.
    ValueError
        If a file is not what was published.

    References
    ----------
    A. Maas et al. (2011), *Learning word vectors for sentiment analysis*.
    """
    if num_words < 4 or length < 1:
        raise ValueError(
            f"`num_words` must be at least 4 and `length` at least 1, got {num_words}, {length}"
        )
    candidates = ["imdb.npz", "aclImdb", "text/imdb_tokens.npz"]
    path = find("IMDB", candidates, ORIGIN, folder)
    read = {"imdb.npz": _read_keras, "aclImdb": _read_texts, "imdb_tokens.npz": _read_tokens}
    train, test, vocabulary_ = read[path.name](path, num_words, check)
    if check:
        for half, what in ((train, "training"), (test, "test")):
            check_size(path, len(half.labels), PER_SPLIT, f"{what} reviews")
            check_size(path, int(half.labels.sum()), PER_SPLIT // 2, f"positive {what} reviews")
    x, y = pad(train.tokens, length), train.labels.astype(np.int32)
    # a smaller copy of the data keeps the paper's share of validation reviews
    end = len(y) - len(y) * VALIDATION // PER_SPLIT
    return Dataset(
        x[:end],
        y[:end],
        pad(test.tokens, length),
        test.labels.astype(np.int32),
        x[end:],
        y[end:],
        name="IMDB",
        origin=str(path),
        features=vocabulary_,
        classes=("negative", "positive"),
        train_rows=train.rows[:end],
        validation_rows=train.rows[end:],
        test_rows=test.rows,
    )


def _read_keras(path: Path, num_words: int, check: bool) -> tuple[_Half, _Half, tuple[str, ...]]:
    if check:
        check_digest(path, path.read_bytes(), KERAS_SHA256)
    arrays = read_npz(path, ["y_train", "y_test"])
    rng = np.random.RandomState(KERAS_SEED)
    halves = []
    for part in ("train", "test"):
        reviews, labels = read_pickled_lists(path, f"x_{part}"), arrays[f"y_{part}"]
        if len(reviews) != len(labels):
            raise corrupt(path, f"it has {len(reviews)} {part} reviews, but {len(labels)} labels")
        rows = np.arange(len(labels))
        rng.shuffle(rows)  # one stream for both halves, as in Keras
        tokens = []
        for row in rows:
            ids = np.array([KERAS_START, *(rank + KERAS_SHIFT for rank in reviews[row])], np.int32)
            tokens.append(np.where(ids < num_words, ids, KERAS_UNKNOWN))
        halves.append(_Half(tokens, labels[rows], rows))
    return halves[0], halves[1], ()


def _read_texts(path: Path, num_words: int, check: bool) -> tuple[_Half, _Half, tuple[str, ...]]:
    texts, labels = {}, {}
    for part in ("train", "test"):
        files: list[Path] = []
        sizes = []
        for sentiment in ("neg", "pos"):
            found = list((path / part / sentiment).glob("*_*.txt"))
            files += sorted(found, key=lambda file: int(file.stem.split("_")[0]))
            sizes.append(len(found))
        if 0 in sizes:
            raise corrupt(path / part, f"there are {sizes[0]} reviews in neg and {sizes[1]} in pos")
        texts[part] = [words(file.read_text(encoding="utf-8")) for file in files]
        labels[part] = np.repeat([0, 1], sizes)
    known = vocabulary(texts["train"], num_words)
    halves = _shuffled(
        [(encode(texts[part], known), labels[part]) for part in ("train", "test")],
    )
    return *halves, known


def _read_tokens(path: Path, num_words: int, check: bool) -> tuple[_Half, _Half, tuple[str, ...]]:
    arrays = read_npz(path, ["ids", "offsets", "label", "is_train", "review_id", "vocab"])
    known = names(arrays["vocab"])
    if num_words > len(known):
        raise ValueError(
            f"`num_words` must be at most {len(known):,}, the words that {path} knows, got "
            f"{num_words:,}; the texts (`aclImdb`) have more"
        )
    ids, offsets = arrays["ids"], arrays["offsets"]
    if len(offsets) != len(arrays["label"]) + 1 or offsets[-1] != len(ids):
        raise corrupt(path, "its offsets do not fit its reviews and tokens")
    ids = np.where(ids < num_words, ids, UNKNOWN).astype(np.int32)
    halves = []
    for is_train in (True, False):
        rows = np.flatnonzero(arrays["is_train"].astype(bool) == is_train)
        rows = rows[np.lexsort((arrays["review_id"][rows], arrays["label"][rows]))]
        halves.append(([ids[offsets[i] : offsets[i + 1]] for i in rows], arrays["label"][rows]))
    train, test = _shuffled(halves)
    return train, test, known[:num_words]


def _shuffled(halves: Sequence[tuple[list[np.ndarray], np.ndarray]]) -> tuple[_Half, _Half]:
    rng = np.random.RandomState(KERAS_SEED)
    result = []
    for tokens, labels in halves:
        rows = np.arange(len(labels))
        rng.shuffle(rows)
        result.append(_Half([tokens[row] for row in rows], labels[rows], rows))
    return result[0], result[1]
