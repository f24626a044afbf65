"""Scores of predictions: plain functions from arrays to a float."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp


def rmse(mean: ArrayLike, y: ArrayLike) -> float:
    """Root mean squared error of `mean` against `y`, of one shape."""
    mean, y = _same_shape("mean", mean, "y", y)
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def log_predictive_density(log_likelihood: ArrayLike) -> float:
    """Mean log density of the data under the mixture of all draws.

    Parameters
    ----------
    log_likelihood
        Pointwise log-likelihoods, shape (draw, point) or (chain, draw, point).

    Returns
    -------
    float
        ``mean_i log mean_s exp(log_likelihood[s, i])``. Its negative is the mixture's NLL, which
        in general is not that of `moment_matched_nll`.
    """
    values = np.asarray(log_likelihood, dtype=float)
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise ValueError(
            "`log_likelihood` must have shape (draw, point) or (chain, draw, point), got "
            f"{values.shape}; average a mixture's own log densities with np.mean"
        )
    values = values.reshape(-1, values.shape[-1])
    return float(np.mean(logsumexp(values, axis=0) - math.log(len(values))))


def moment_matched_nll(mean: ArrayLike, variance: ArrayLike, y: ArrayLike) -> float:
    """Mean negative log density of `y` under one Gaussian per point.

    With the mean and the total variance of the predictive mixture this is the NLL that Izmailov
    et al. (2021) and much of the UCI literature report for regression.
    """
    mean, y = _same_shape("mean", mean, "y", y)
    variance, y = _same_shape("variance", variance, "y", y)
    if not (variance > 0).all():
        raise ValueError(f"`variance` must be positive; its smallest value is {variance.min()}")
    return float(np.mean(0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)))


def interval_coverage(lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> float:
    """Share of the `y` that lie in the closed intervals from `lower` to `upper`."""
    lower, y = _same_shape("lower", lower, "y", y)
    upper, y = _same_shape("upper", upper, "y", y)
    if (lower > upper).any():
        raise ValueError(
            f"`lower` exceeds `upper` at {int((lower > upper).sum())} points; swap the arguments?"
        )
    return float(np.mean((lower <= y) & (y <= upper)))


def accuracy(probs: ArrayLike, y: ArrayLike) -> float:
    """Share of the labels `y` (point,) that are the likeliest class of `probs` (point, class)."""
    probs, labels = _classification(probs, y)
    return float(np.mean(probs.argmax(axis=1) == labels))


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """Mean over points of the squared distance between `probs` and the one-hot label.

    The sum runs over all classes (Brier 1950), so for two classes it is twice the score that
    considers only one of them.
    """
    probs, labels = _classification(probs, y)
    return float(np.mean(np.sum((probs - np.eye(probs.shape[1])[labels]) ** 2, axis=1)))


def ece(
    probs: ArrayLike, y: ArrayLike, *, num_bins: int = 20, binning: str = "equal_mass"
) -> float:
    """Expected calibration error of the most probable class.

    Parameters
    ----------
    probs, y
        Probabilities of shape (point, class) and labels of shape (point,).
    num_bins
        Number of bins of the confidence.
    binning
        "equal_mass": the points sorted by confidence are cut into bins of one size (sizes differ
        by one if they must). "equal_width": the bins ((k - 1) / num_bins, k / num_bins].

    Returns
    -------
    float
        Mean over points of ``|accuracy - mean confidence|`` of the point's bin. Every point is in
        a bin; in the published code of Izmailov et al. (2021) points on an edge are in none.
    """
    probs, labels = _classification(probs, y)
    if num_bins < 1:
        raise ValueError(f"`num_bins` must be at least 1, got {num_bins}")
    confidence = probs.max(axis=1)
    error = confidence - (probs.argmax(axis=1) == labels)
    if binning == "equal_mass":
        bins = np.array_split(np.argsort(confidence, kind="stable"), num_bins)
    elif binning == "equal_width":
        index = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
        bins = [np.flatnonzero(index == k) for k in range(num_bins)]
    else:
        raise ValueError(f"`binning` must be 'equal_mass' or 'equal_width', got {binning!r}")
    return float(sum(abs(error[members].sum()) for members in bins) / len(labels))


def agreement(probs: ArrayLike, reference: ArrayLike) -> float:
    """Share of the points at which two predictions (point, class) favour the same class."""
    probs, reference = _two_predictions(probs, reference)
    return float(np.mean(probs.argmax(axis=1) == reference.argmax(axis=1)))


def total_variation(probs: ArrayLike, reference: ArrayLike) -> float:
    """Mean over points of the total variation distance between two predictions (point, class)."""
    probs, reference = _two_predictions(probs, reference)
    return float(np.mean(0.5 * np.sum(np.abs(probs - reference), axis=1)))


def diversity(members: ArrayLike, y: ArrayLike) -> float:
    """How often two members favour different classes, in units of the ensemble's error.

    Parameters
    ----------
    members
        Class probabilities of each member, shape (member, point, class), at least two; of a
        prediction with ``return_draws=True``, ``prediction.draws.mean(axis=1)``.
    y
        Labels, shape (point,).

    Returns
    -------
    float
        Mean over pairs of members of the share of points at which they favour different classes,
        divided by one minus the accuracy of their mean (Fort, Hu & Lakshminarayanan 2019;
        Dusenberry et al. 2020). NaN where that accuracy is 1.
    """
    probs = np.asarray(members, dtype=float)
    if probs.ndim != 3 or len(probs) < 2:
        raise ValueError(
            "`members` must have shape (member, point, class) with at least two members, got "
            f"{probs.shape}"
        )
    error = 1 - accuracy(probs.mean(axis=0), y)
    favoured = probs.argmax(axis=2)
    apart = [np.mean(a != b) for a, b in combinations(favoured, 2)]
    return float(np.mean(apart) / error) if error else math.nan


def _same_shape(
    name: str, value: ArrayLike, other_name: str, other: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(value, dtype=float), np.asarray(other, dtype=float)
    # (n, 1) against (n,) would broadcast to (n, n) and give a number all the same.
    if a.shape != b.shape or a.size == 0:
        raise ValueError(
            f"`{name}` and `{other_name}` must have one shape and not be empty, got {a.shape} and "
            f"{b.shape}"
        )
    return a, b


def _probabilities(name: str, value: ArrayLike) -> np.ndarray:
    probs = np.asarray(value, dtype=float)
    if probs.ndim != 2 or 0 in probs.shape:
        raise ValueError(f"`{name}` must have shape (point, class), got {probs.shape}")
    if (
        not (np.isfinite(probs).all() and (probs >= 0).all())
        or (np.abs(probs.sum(axis=1) - 1) > 1e-3).any()
    ):
        raise ValueError(
            f"the rows of `{name}` must be probabilities that sum to 1; were logits given?"
        )
    return probs


def _classification(probs: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    values, labels = _probabilities("probs", probs), np.asarray(y)
    if labels.shape != values.shape[:1]:
        raise ValueError(
            f"`y` must have shape {values.shape[:1]}, one label for each row of `probs`, got "
            f"{labels.shape}"
        )
    if not np.issubdtype(labels.dtype, np.integer) and labels.dtype != bool:
        raise ValueError(f"`y` must hold integer class labels, got dtype {labels.dtype}")
    labels = labels.astype(int)
    if labels.min() < 0 or labels.max() >= values.shape[1]:
        raise ValueError(
            f"`y` must hold labels from 0 to {values.shape[1] - 1}, got {labels.min()} to "
            f"{labels.max()}"
        )
    return values, labels


def _two_predictions(probs: ArrayLike, reference: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = _probabilities("probs", probs), _probabilities("reference", reference)
    if a.shape != b.shape:
        raise ValueError(f"`probs` and `reference` must have one shape, got {a.shape}, {b.shape}")
    return a, b
