"""Functions drawn from the prior, summed up in numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SURE = 0.99
ALL_POINTS = 0.95


@dataclass(frozen=True, eq=False)
class PriorFunctions:
    """Functions drawn from the prior, and how they differ.

    Attributes
    ----------
    kind
        What the observed site's values are: "classes" (labels), "positive" (positive numbers or
        counts) or "real".
    site
        Name of the observed site.
    x
        The inputs, as a tuple of the model's arguments.
    y
        The targets, if they were given.
    functions
        Shape (draw, point, ...): the mean of the site's distribution for real values (its location,
        if it has one), the logarithm of the mean for positive ones, and the log-probabilities for
        classes, class last.
    variances
        Its variances, shape (draw, point, ...); None for classes.
    """

    kind: str
    site: str
    x: tuple
    y: np.ndarray | None
    functions: np.ndarray
    variances: np.ndarray | None

    @property
    def num_draws(self) -> int:
        """Number of draws of the prior."""
        return self.functions.shape[0]

    @property
    def num_points(self) -> int:
        """Number of inputs."""
        return self.functions.shape[1]

    @cached_property
    def values(self) -> np.ndarray:
        """Functions of the finite draws, shape (draw, point, output); for classes their logits.

        Logits are centred: those of one point add up to zero.
        """
        values = self.functions[self._is_finite].astype(np.float64)
        if self.kind == "classes":
            values = values - values.mean(axis=-1, keepdims=True)
        return values.reshape(*values.shape[:2], math.prod(values.shape[2:]))

    @property
    def num_nonfinite(self) -> int:
        """Number of draws in which a function is NaN or infinite somewhere; others are left out."""
        return int((~self._is_finite).sum())

    @property
    def unit(self) -> np.ndarray:
        """Standard deviation of each target; one where it is not known or has no meaning."""
        if self.kind != "real" or self.y is None:
            return np.ones(self.values.shape[-1])
        deviation = self.y.reshape(self.num_points, -1).std(axis=0)
        return np.where(deviation > 0, deviation, 1.0)

    @cached_property
    def across_draws(self) -> np.ndarray:
        """Standard deviation over draws at a point (root mean square over points), per output."""
        return np.sqrt(self.values.var(axis=0, ddof=1).mean(axis=0))

    @cached_property
    def width(self) -> np.ndarray:
        """As `across_draws`, from the distance of quartiles: heavy tails do not move it."""
        lower, upper = np.quantile(self.values, [0.25, 0.75], axis=0)
        return np.sqrt((((upper - lower) / 1.349) ** 2).mean(axis=0))

    @cached_property
    def across_x(self) -> np.ndarray:
        """Standard deviation over points in a draw (root mean square over draws), per output."""
        return np.sqrt(self.values.var(axis=1).mean(axis=0))

    @cached_property
    def noise(self) -> np.ndarray:
        """Standard deviation of the noise, per output: the median over draws and points."""
        assert self.variances is not None
        deviations = np.sqrt(self.variances[self._is_finite].astype(np.float64))
        return np.median(deviations.reshape(-1, self.values.shape[-1]), axis=0)

    @cached_property
    def probs(self) -> np.ndarray:
        """Class probabilities of the finite draws, shape (draw, point, ..., class)."""
        return np.exp(self.functions[self._is_finite].astype(np.float64))

    @property
    def saturation(self) -> float:
        """Share of draws and points at which one class has a probability above 0.99."""
        return float((self.probs.max(axis=-1) > SURE).mean())

    @property
    def entropy(self) -> float:
        """Mean entropy of the class probabilities, as a share of that of equal ones."""
        logs = np.log(np.maximum(self.probs, 1e-300))
        return float(-(self.probs * logs).sum(axis=-1).mean() / np.log(self.probs.shape[-1]))

    @property
    def one_class(self) -> float:
        """Share of draws in which one class is the likeliest at more than 95 % of the points."""
        return float((self.class_shares.max(axis=-1) > ALL_POINTS).mean())

    @cached_property
    def class_shares(self) -> np.ndarray:
        """Share of points at which each class is the likeliest, shape (draw, class)."""
        likeliest = self.probs.argmax(axis=-1).reshape(len(self.probs), -1)
        classes = np.arange(self.probs.shape[-1])
        return (likeliest[..., None] == classes).mean(axis=1)

    @cached_property
    def _is_finite(self) -> np.ndarray:
        return np.isfinite(self.functions.reshape(self.num_draws, -1)).all(axis=1)
