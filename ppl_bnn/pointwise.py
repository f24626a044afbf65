"""The log-likelihood of each data point under each draw."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions.distribution import Independent

from ppl_bnn.parameters import is_classifier, log_probs
from ppl_bnn.replay import Replay


def pointwise_log_likelihood(replay: Replay, y: Any) -> np.ndarray:
    """Log density of each row of `y` under each draw, shape (chain * draw, point).

    Parameters
    ----------
    replay
        The observed site at the inputs of the rows.
    y
        Observed values, shape (point, ...): the site's value with its rows first. Everything in
        one row (several outputs) is one data point.

    Raises
    ------
    ValueError
        If the shape of `y` is not that of the site, or if `y` has NaNs or values that are no class.
    """
    y = np.asarray(y)
    axis = replay.point_axis
    check_observed(replay, y)
    result = np.empty((replay.num_samples, replay.num_points), np.float32)

    def log_likelihood(distribution: Any, rows: Any) -> Any:
        distribution = rows_in_batch(distribution, axis)
        values = distribution.log_prob(jnp.moveaxis(rows, 0, axis))
        others = tuple(i for i in range(values.ndim) if i != axis)
        return values.sum(axis=others)

    for rows, values in replay.chunks(log_likelihood, y):
        if result.dtype != values.dtype:
            result = result.astype(values.dtype)
        result[:, rows] = values[:, : rows.stop - rows.start]
    return result


def rows_in_batch(distribution: Any, axis: int) -> Any:
    """The distribution with the rows of the data among its batch axes, not inside one event."""
    while axis >= len(distribution.batch_shape):
        if not isinstance(distribution, Independent):
            raise ValueError(
                f"the rows of the data are one event of a {type(distribution).__name__}: they are "
                "not independent given the parameters and have no log-likelihoods of their own"
            )
        distribution = distribution.base_dist
    return distribution


def check_observed(replay: Replay, y: np.ndarray) -> None:
    """Refuse observed values that do not fit the model's site at the inputs of `replay`."""
    expected = replay.value_shape()
    if y.shape != expected:
        raise ValueError(
            f"`y` must have the shape {expected} of site {replay.site!r} at `x`, rows first; got "
            f"{y.shape}"
        )
    if np.issubdtype(y.dtype, np.floating) and not np.isfinite(y).all():
        raise ValueError("`y` holds NaN or infinite values")
    if is_classifier(replay.distribution):
        num_classes = log_probs(replay.distribution).shape[-1]
        if not np.issubdtype(y.dtype, np.integer) and y.dtype != bool:
            raise ValueError(f"`y` must hold integer class labels, got dtype {y.dtype}")
        if y.min() < 0 or y.max() >= num_classes:
            raise ValueError(
                f"`y` must hold labels from 0 to {num_classes - 1}, got {y.min()} to {y.max()}"
            )
