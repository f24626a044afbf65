"""Features and targets in units of their deviation over the training rows, and the way back."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ppl_bnn import metrics
from ppl_bnn.datasets.dataset import PARTS, Dataset
from ppl_bnn.predict import RegressionPrediction


class Standardized(NamedTuple):
    """What `standardize` gives: the data to fit, and the units to report in."""

    data: Dataset
    units: Units


def standardize(
    data: Dataset, *, targets: bool | None = None, epsilon: float = 0.0
) -> Standardized:
    """Subtract the mean of the training rows from each column and divide by their deviation.

    Validation and test rows are scaled by the training rows' numbers too. A feature that is
    constant over the training rows teaches nothing: it becomes 0 everywhere, with a warning.

    Parameters
    ----------
    data
        With features of shape (row, column) and, for regression, targets of shape (row,) or
        (row, output).
    targets
        Whether to scale `y` as well; by default if `data` has no classes.
    epsilon
        Added to every deviation. Izmailov et al. (2021) use 1e-6.

    Returns
    -------
    Standardized
        ``data, units``: the scaled data, and the `Units` that turn predictions back exactly.

    Raises
    ------
    ValueError
        If features are no table, values are not finite, or targets are constant.

    Examples
    --------
    >>> data, units = standardize(raw)  # doctest: +SKIP
    >>> mcmc.run(key, data.x_train, data.y_train)  # doctest: +SKIP
    >>> prediction = units.restore(ppl_bnn.predict(mcmc, data.x_test))  # doctest: +SKIP
    >>> metrics.rmse(prediction.mean, raw.y_test)  # doctest: +SKIP
    """
    if not (np.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"`epsilon` must be a number of at least 0, got {epsilon}")
    x_mean, x_std, x_constant = _moments("x_train", data.x_train, ndims=(2,))
    if x_constant.any():
        columns = np.flatnonzero(x_constant)
        named = [data.features[i] if data.features else str(i) for i in columns]
        warnings.warn(
            f"{data.name}: constant over the training rows, so set to 0 everywhere: "
            f"{', '.join(named)}",
            stacklevel=2,
        )
    # an infinite deviation maps the column to 0, test rows included
    x_std = np.where(x_constant, np.inf, x_std + epsilon)

    with_targets = targets if targets is not None else not data.classes
    y_mean, y_std = np.zeros(()), np.ones(())
    if with_targets:
        y_mean, y_std, y_constant = _moments("y_train", data.y_train, ndims=(1, 2))
        if y_constant.any():
            raise ValueError("`y_train` is constant: there is nothing to learn and no scale")
        y_std = np.asarray(y_std + epsilon)
    units = Units(x_mean, x_std, y_mean, y_std)

    changes: dict[str, Any] = {}
    for letter, scale in (("x", units.scale_x), ("y", units.scale_y))[: 1 + with_targets]:
        for name in (f"{letter}_{part}" for part in PARTS):
            values = getattr(data, name)
            if values is not None:
                _check_finite(name, values)
                expected = getattr(data, f"{letter}_train").shape[1:]
                if values.shape[1:] != expected:
                    raise ValueError(
                        f"`{name}` has shape {values.shape}, but a row of `{letter}_train` has "
                        f"shape {expected}"
                    )
                changes[name] = scale(values)
    return Standardized(replace(data, **changes), units)


@dataclass(frozen=True, eq=False)
class Units:
    """The units of the original data; turns standardised numbers back into them.

    Attributes
    ----------
    x_mean, x_std
        Of each feature over the training rows, shape (column,); a constant feature has an infinite
        `x_std`.
    y_mean, y_std
        Of the targets, shape () or (output,); 0 and 1 if they were left alone.
    """

    x_mean: np.ndarray
    x_std: np.ndarray
    y_mean: np.ndarray
    y_std: np.ndarray

    def scale_x(self, x: ArrayLike) -> np.ndarray:
        """Standardised features of new rows, shape (row, column)."""
        if np.ndim(x) != 2 or np.shape(x)[1] != self.x_mean.size:
            raise ValueError(
                f"`x` has shape {np.shape(x)}, expected (row, {self.x_mean.size}): the columns of "
                "the training rows"
            )
        return (np.asarray(x) - self.x_mean) / self.x_std

    def scale_y(self, y: ArrayLike) -> np.ndarray:
        """Standardised targets."""
        return (np.asarray(y) - self.y_mean) / self.y_std

    def location(self, value: ArrayLike) -> Any:
        """Targets, means, quantiles or draws in original units, shape (..., output) or (...)."""
        return self.y_mean + self.y_std * np.asarray(value)

    def deviation(self, value: ArrayLike) -> Any:
        """Standard deviations or errors in original units."""
        return self.y_std * np.asarray(value)

    def variance(self, value: ArrayLike) -> Any:
        """Variances in original units, squared."""
        return self.y_std**2 * np.asarray(value)

    def log_density(self, value: ArrayLike) -> Any:
        """Log densities of rows, or their mean, as those of targets in original units.

        The density of a row's targets (all outputs together) divides by their scales, so the log
        falls by ``sum(log(y_std))``.
        """
        return np.asarray(value) - np.log(self.y_std).sum()

    def nll(self, value: ArrayLike) -> Any:
        """Negative log densities of rows, or their mean, for targets in original units."""
        return np.asarray(value) + np.log(self.y_std).sum()

    def rmse(self, mean: ArrayLike, y: ArrayLike) -> float | np.ndarray:
        """Root mean squared error in original units of standardised `mean` against `y`.

        A float for one output; for several, whose units may differ, an array of shape (output,).
        """
        if self.y_std.size == 1:
            return self.y_std.item() * metrics.rmse(mean, y)
        if np.shape(mean)[1:] != self.y_std.shape:
            raise ValueError(
                f"`mean` has shape {np.shape(mean)}, expected (row, {self.y_std.size}): one column "
                "for each target"
            )
        each = zip(np.asarray(mean).T, np.asarray(y).T, strict=True)
        return self.y_std * np.array([metrics.rmse(a, b) for a, b in each])

    def restore(self, prediction: RegressionPrediction) -> RegressionPrediction:
        """A prediction in original units: its moments, quantiles and draws, and `log_prob(y)`.

        Parameters
        ----------
        prediction
            What `ppl_bnn.predict` gives for a model of standardised targets.
        """
        if not isinstance(prediction, RegressionPrediction):
            raise ValueError(
                f"`prediction` must be one of regression, got {type(prediction).__name__}: class "
                "probabilities have no units"
            )
        optional: dict[str, Any] = {
            name: None if (value := getattr(prediction, name)) is None else self.location(value)
            for name in ("draws", "quantiles")
        }
        return _RestoredPrediction(
            **optional,
            _replay=prediction._replay,
            mean=self.location(prediction.mean),
            epistemic_variance=self.variance(prediction.epistemic_variance),
            aleatoric_variance=self.variance(prediction.aleatoric_variance),
            _scaled=prediction,
            _units=self,
        )


@dataclass(frozen=True, eq=False, repr=False)
class _RestoredPrediction(RegressionPrediction):
    """A prediction whose numbers, and whose `log_prob`, are in original units."""

    _scaled: RegressionPrediction
    _units: Units

    def log_prob(self, y: Any) -> np.ndarray:
        return self._units.log_density(self._scaled.log_prob(self._units.scale_y(y)))


def _moments(
    name: str, values: Any, ndims: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if isinstance(values, tuple) or values.ndim not in ndims:
        shape = [part.shape for part in values] if isinstance(values, tuple) else values.shape
        raise ValueError(
            f"`{name}` must be a table, (row, column), to be standardised, got shape {shape}; "
            "images and sequences are scaled by their loaders"
        )
    _check_finite(name, values)
    values = values.astype(float)
    # compared exactly: the deviation of a constant is not always 0 in floating point
    constant = values.max(axis=0) == values.min(axis=0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        mean, std = np.asarray(values.mean(axis=0)), np.asarray(values.std(axis=0))
    lost = ~constant & ~(np.isfinite(std) & (std > 0))
    if np.any(lost):
        column = int(np.argmax(lost))
        raise ValueError(
            f"`{name}` has a column, {column}, whose numbers are too small or too large for a "
            "standard deviation; change its unit first"
        )
    return mean, std, np.asarray(constant)


def _check_finite(name: str, values: np.ndarray) -> None:
    if values.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` must hold numbers, got dtype {values.dtype}")
    if not np.isfinite(values).all():
        first = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(
            f"`{name}` has values that are NaN or infinite, the first at index {first}; remove or "
            "impute them first"
        )
