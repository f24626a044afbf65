"""Class labels: any values as 0..K-1 with their names kept, and balanced draws of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Labels(NamedTuple):
    """Labels of training and test rows as integers, and the names that they stand for."""

    train: np.ndarray
    test: np.ndarray
    classes: tuple[str, ...]


def encode_labels(
    y_train: ArrayLike, y_test: ArrayLike, classes: Sequence[Any] | int | None = None
) -> Labels:
    """Class labels of any kind as integers from 0 to K-1.

    Parameters
    ----------
    y_train, y_test
        Labels of shape (row,): integers, text, booleans.
    classes
        All classes in the order that they are to have, or their number if they are 0..K-1. By
        default the sorted labels of the training rows, which must then be consecutive if they are
        integers: a gap is a class without training rows more often than not.

    Returns
    -------
    Labels
        `train` and `test` as int32 arrays, and the names `classes`.

    Raises
    ------
    ValueError
        Names the class that has no training row, or the label that is no class.

    Examples
    --------
    >>> encode_labels(["no", "yes", "no"], ["yes"])
    Labels(train=array([0, 1, 0], dtype=int32), test=array([1], dtype=int32), classes=('no', 'yes'))
    """
    train, test = _labels("y_train", y_train), _labels("y_test", y_test)
    if classes is None:
        known = np.unique(train)
        if known.dtype.kind in "iu" and (gaps := _gaps(known)):
            raise ValueError(
                f"no training row has the label {_listed(gaps)}, though {known[0]} and {known[-1]} "
                "occur. Add such rows, or, if there is no such class, pass "
                f"`classes={known[:9].tolist()}`{' and so on' if known.size > 9 else ''}."
            )
    else:
        known = np.arange(classes) if isinstance(classes, int) else np.asarray(list(classes))
        if len(np.unique(known)) != len(known) or not len(known):
            raise ValueError(f"`classes` must be different labels, got {classes!r}")
    order = np.argsort(known)
    codes = []
    for name, y in (("y_train", train), ("y_test", test)):
        if strangers := [v for v in np.unique(y).tolist() if v not in known.tolist()]:
            absent = "no training row has" if classes is None else "`classes` does not have"
            raise ValueError(
                f"`{name}` has the label {_listed(strangers)}, which {absent}: "
                f"the classes are {_listed(known)}. A class needs training rows; split the rows by "
                "class (`stratify=` of scikit-learn's `train_test_split`), or leave it out."
            )
        codes.append(order[np.searchsorted(known, y, sorter=order)].astype(np.int32))
    text = tuple(str(value) for value in known.tolist())
    check_codes("y_train", codes[0], text, every=True)
    return Labels(codes[0], codes[1], text)


def check_codes(name: str, y: np.ndarray, classes: tuple[str, ...], *, every: bool) -> None:
    """Refuse labels that are no integers of 0..K-1, and, with `every`, a class without a row."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must be integers of shape (row,) where there are classes, got "
            f"{y.dtype}{y.shape}; `ppl_bnn.datasets.encode_labels` makes them"
        )
    counts = np.bincount(y, minlength=len(classes)) if y.size and y.min() >= 0 else None
    if y.size and (counts is None or len(counts) > len(classes)):
        raise ValueError(
            f"`{name}` must hold labels from 0 to {len(classes) - 1}, got {y.min()} to {y.max()}"
        )
    if every and (counts is None or not counts.all()):
        empty = range(len(classes)) if counts is None else np.flatnonzero(counts == 0)
        missing = [f"{k} ({classes[k]!r})" if classes[k] != str(k) else str(k) for k in empty]
        raise ValueError(
            f"`{name}` has no row of class {_listed(missing)}, so nothing could be learnt of it. "
            f"There are {len(classes)} classes, 0 to {len(classes) - 1}; add rows of it, or leave "
            "it out of `classes`."
        )


def balanced_rows(
    y: np.ndarray, num_classes: int, number: int, rng: np.random.Generator
) -> np.ndarray:
    """Positions of `number` rows, in order, as evenly over classes as their sizes allow."""
    members = [rng.permutation(np.flatnonzero(y == k)) for k in range(num_classes)]
    sizes = np.array([len(m) for m in members])
    quota = np.zeros(num_classes, int)
    while (left := number - quota.sum()) > 0:
        # smallest quota first, so that no class is more than one ahead of another that has rows
        open_ = np.flatnonzero(quota < sizes)
        share = max(left // len(open_), 1)
        for k in open_[: min(left, len(open_))]:
            quota[k] = min(sizes[k], quota[k] + share)
    return np.sort(np.concatenate([m[:q] for m, q in zip(members, quota, strict=True)]))


def _gaps(known: np.ndarray) -> list[int]:
    """The first integers between the least and the largest that are not there."""
    ends = np.flatnonzero(np.diff(known) > 1)
    missing = (n for i in ends for n in range(int(known[i]) + 1, int(known[i + 1])))
    return list(islice(missing, 11))


def _labels(name: str, value: ArrayLike) -> np.ndarray:
    # in a list a missing label would become text
    y = np.asarray(value, object if isinstance(value, list | tuple) else None)
    if y.dtype.kind == "O":
        each = y.ravel().tolist()
        if missing := [i for i, label in enumerate(each) if label is None or label != label]:
            raise ValueError(
                f"`{name}` has no label in {len(missing)} rows, the first of them row "
                f"{missing[0]}; drop these rows"
            )
        y = np.asarray(each).reshape(y.shape)
    if y.ndim != 1 or not y.size:
        raise ValueError(f"`{name}` must hold labels of shape (row,), got shape {y.shape}")
    if y.dtype.kind == "f":
        if not np.array_equal(y, np.round(y)):
            raise ValueError(f"`{name}` must hold class labels, got numbers that are not whole")
        if not (np.abs(y) < 2**53).all():
            raise ValueError(f"`{name}` must hold class labels, got {y[np.argmax(np.abs(y))]}")
        return y.astype(int)
    return y.astype(str) if y.dtype.kind == "O" else y


def _listed(values: Any) -> str:
    shown = [str(value) for value in list(values)[:10]]
    return ", ".join(shown) + (", ..." if len(values) > 10 else "")
