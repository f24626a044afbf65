"""A data set in memory: training, validation and test rows, and where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ppl_bnn.datasets.labels import balanced_rows, check_codes

PARTS = ("train", "validation", "test")


class Series(NamedTuple):
    """Sequences of numbers of which some were not measured.

    Attributes
    ----------
    x
        Shape (row, step, variable), 0 where nothing was measured.
    mask
        Whether a step belongs to the sequence, shape (row, step).
    observed
        Whether a value was measured, shape (row, step, variable).
    static
        What does not change over a sequence, shape (row, feature).
    """

    x: np.ndarray
    mask: np.ndarray
    observed: np.ndarray
    static: np.ndarray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features and targets of training and test rows; read-only.

    Attributes
    ----------
    x_train, x_test
        Features, an array or a tuple of arrays (`Series`) with one row per datum.
    y_train, y_test
        Targets of shape (row,) or (row, output), or class labels 0..K-1.
    x_validation, y_validation
        Rows that the source keeps apart from both; None where there are none.
    name, origin
        What the data are, and the file or service that they were read from.
    features, targets
        Names of the columns of `x` and `y`; for text, the words by their token ids.
    classes
        Names of the classes, in the order of their labels; empty for regression.
    train_rows, validation_rows, test_rows
        Positions of the rows in the source, if known.

    Raises
    ------
    ValueError
        If features and targets differ in their numbers of rows, or if, with `classes`, a label is
        no class or a class has no training row.
    """

    x_train: Any
    y_train: np.ndarray
    x_test: Any
    y_test: np.ndarray
    x_validation: Any = None
    y_validation: np.ndarray | None = None
    name: str = "data"
    origin: str = ""
    features: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    train_rows: np.ndarray | None = None
    validation_rows: np.ndarray | None = None
    test_rows: np.ndarray | None = None

    def __post_init__(self) -> None:
        for part in PARTS:
            for field in _fields(part):
                object.__setattr__(self, field, _read_only(getattr(self, field)))
            self._check(part)

    def _check(self, part: str) -> None:
        x, y, rows = self._part(part)
        if x is None and y is None and part == "validation":
            return
        if x is None or y is None:
            raise ValueError(f"both `x_{part}` and `y_{part}` are needed, and one is None")
        lengths = {name: _lengths(value) for name, value in _fields(part, x, y, rows).items()}
        if len(set().union(*lengths.values())) != 1:
            listed = ", ".join(f"`{name}`: {sorted(n)}" for name, n in lengths.items() if n)
            raise ValueError(f"features and targets need one row per datum each, got {listed}")
        if self.classes:
            check_codes(f"y_{part}", y, self.classes, every=part == "train")

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{len(getattr(self, f'y_{part}')):,} {part}"
            for part in PARTS
            if getattr(self, f"y_{part}") is not None
        )
        kind = f"{len(self.classes)} classes" if self.classes else "regression"
        return f"Dataset({self.name}: {sizes}; {kind}; from {self.origin or 'memory'})"

    def subset(self, num_train: int, num_test: int | None = None, *, seed: int = 0) -> Dataset:
        """Fewer rows, drawn without replacement and kept in their order.

        Parameters
        ----------
        num_train, num_test
            Numbers of training and test rows; `num_test=None` keeps all. With classes, each gets
            the same number of rows, or one more, or all that it has if those are fewer.
        seed
            The same seed gives the same rows.

        Raises
        ------
        ValueError
            For more rows than there are, or fewer training rows than classes.
        """
        changes: dict[str, Any] = {}
        for part, number in (("train", num_train), ("test", num_test)):
            if number is None:
                continue
            x, y, rows = self._part(part)
            if not 0 < number <= len(y):
                raise ValueError(f"`num_{part}` must lie between 1 and {len(y)}, got {number}")
            if part == "train" and number < len(self.classes):
                raise ValueError(
                    f"`num_train` must be at least {len(self.classes)}, one row for each class, "
                    f"got {number}"
                )
            rng = np.random.default_rng([seed, PARTS.index(part)])
            if self.classes:
                chosen = balanced_rows(y, len(self.classes), number, rng)
            else:
                chosen = np.sort(rng.choice(len(y), number, replace=False))
            rows = chosen if rows is None else rows[chosen]
            changes |= _fields(part, _take(x, chosen), y[chosen], rows)
        return replace(self, **changes)

    def in_source_order(self) -> Dataset:
        """The same rows in each part, in the order that they have in the source.

        Raises
        ------
        ValueError
            If the positions of the rows in the source are not known.
        """
        changes: dict[str, Any] = {}
        for part in PARTS:
            x, y, rows = self._part(part)
            if y is None:
                continue
            if rows is None:
                raise ValueError(f"`{part}_rows` is None: the order of the source is not known")
            order = np.argsort(rows)
            changes |= _fields(part, _take(x, order), y[order], rows[order])
        return replace(self, **changes)

    def _part(self, part: str) -> tuple[Any, Any, Any]:
        return tuple(getattr(self, name) for name in _fields(part))


def names(values: Sequence[Any] | np.ndarray) -> tuple[str, ...]:
    """Names as text, whether a file stored them as text or bytes."""
    return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in values)


def _fields(part: str, x: Any = None, y: Any = None, rows: Any = None) -> dict[str, Any]:
    """What belongs to a part, by the names of the fields."""
    return {f"x_{part}": x, f"y_{part}": y, f"{part}_rows": rows}


def _each(function: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [function(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value)


def _take(value: Any, rows: np.ndarray) -> Any:
    return _each(lambda array: array[rows], value)


def _read_only(value: Any) -> Any:
    if value is None:
        return None

    def freeze(array: Any) -> np.ndarray:
        view = np.asarray(array).view()
        view.flags.writeable = False
        return view

    return _each(freeze, value)


def _lengths(value: Any) -> set[int]:
    if value is None:
        return set()
    arrays = value if isinstance(value, tuple) else (value,)
    return {len(array) if array.ndim else -1 for array in arrays}
