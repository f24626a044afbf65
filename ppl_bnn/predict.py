"""Predictions of the Bayesian model average: the mixture of what every draw predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from ppl_bnn.draws import as_draws
from ppl_bnn.mixture import MixtureQuantiles
from ppl_bnn.parameters import is_classifier, log_probs
from ppl_bnn.pointwise import pointwise_log_likelihood
from ppl_bnn.replay import Replay


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What regression and classification share.

    Attributes
    ----------
    draws
        With `return_draws`, what each draw predicts (its mean, or its probabilities), shape
        (chain, draw, point, ...).
    """

    draws: np.ndarray | None
    _replay: Replay

    def __repr__(self) -> str:
        """Shapes of what there is, not its numbers."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        shapes = [f"{name}: {v.shape}" for name, v in values if isinstance(v, np.ndarray)]
        return f"{type(self).__name__.lstrip('_')}({', '.join(shapes)})"

    def log_prob(self, y: Any) -> np.ndarray:
        """Log predictive density of each `y` under the mixture of all draws, shape (point,).

        Parameters
        ----------
        y
            Observed values, shape (point, ...), in the units in which the model was fitted.

        Raises
        ------
        ValueError
            If `y` has another shape than the predictions, has NaNs, or, for class labels, holds
            values that are no class.
        """
        log_likelihood = pointwise_log_likelihood(self._replay, y)
        return logsumexp(log_likelihood, axis=0) - math.log(len(log_likelihood))


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPrediction(Prediction):
    """The predictive mixture at each point, where the observed site holds numbers.

    Attributes
    ----------
    mean
        Shape (point, ...).
    epistemic_variance
        Variance over draws of their means: what more data would reduce.
    aleatoric_variance
        Mean over draws of their variances: the noise. The two add up to the mixture's variance.
    quantiles
        Quantiles of the mixture, shape (quantile, point, ...); None if none were asked for.
    """

    mean: np.ndarray
    epistemic_variance: np.ndarray
    aleatoric_variance: np.ndarray
    quantiles: np.ndarray | None

    @property
    def variance(self) -> np.ndarray:
        """Variance of the mixture, by the law of total variance."""
        return self.epistemic_variance + self.aleatoric_variance


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationPrediction(Prediction):
    """The predictive mixture at each point, where the observed site holds class labels.

    Attributes
    ----------
    probs
        Mean over draws of the class probabilities, shape (point, ..., class).
    mutual_information
        Epistemic part of the entropy of `probs` in nats: how far the draws disagree.
    expected_entropy
        Aleatoric part: mean over draws of their entropies.
    """

    probs: np.ndarray
    mutual_information: np.ndarray
    expected_entropy: np.ndarray


def predict(
    draws: Any,
    x: Any,
    *,
    quantiles: Sequence[float | int] | np.ndarray | None = None,
    return_draws: bool = False,
    model: Callable | None = None,
    site: str | None = None,
    group_by_chain: bool = False,
    batch_size: int = 16,
    points_batch_size: int | None = 1024,
    model_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Bayesian model average at the inputs `x`.

    Memory holds all draws of one chunk of points at a time, however many points there are
    (unless `return_draws` asks for all of them).

    Parameters
    ----------
    draws, x, model, site, group_by_chain, batch_size, points_batch_size, model_kwargs
        As for `function_space`.
    quantiles
        Levels in (0, 1), for regression. They are quantiles of the predictive mixture, noise
        included, solved for exactly (not quantiles of the means, nor of samples).
    return_draws
        Whether to keep the prediction of every draw.

    Returns
    -------
    RegressionPrediction or ClassificationPrediction
        With `mean` or `probs`, their split into epistemic and aleatoric parts, and
        `log_prob(y)`. The kind follows from the distribution of the observed site: categorical
        and Bernoulli sites are classification.

    Raises
    ------
    ValueError
        As `function_space`; for quantiles outside (0, 1), of class labels, or of a distribution
        without a cumulative distribution function.

    Examples
    --------
    >>> prediction = predict(mcmc, x_test, quantiles=(0.05, 0.95))  # doctest: +SKIP
    >>> lower, upper = prediction.quantiles  # doctest: +SKIP
    """
    levels = None if quantiles is None else np.asarray(quantiles, dtype=float)
    if levels is not None and (levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all()):
        raise ValueError(f"`quantiles` must be levels between 0 and 1, got {quantiles}")
    replay = Replay(
        as_draws(draws, model, group_by_chain=group_by_chain),
        x,
        site=site,
        batch_size=batch_size,
        points_batch_size=points_batch_size,
        model_kwargs=model_kwargs,
    )
    if is_classifier(replay.distribution):
        if levels is not None:
            raise ValueError(
                f"site {replay.site!r} holds class labels, which have no quantiles; use `probs`"
            )
        return _classification(replay, return_draws)
    return _regression(replay, levels, return_draws)


def _regression(
    replay: Replay, levels: np.ndarray | None, return_draws: bool
) -> RegressionPrediction:
    def moments(distribution: Any) -> dict[str, Any]:
        shape = distribution.batch_shape + distribution.event_shape
        out = {
            name: jnp.moveaxis(jnp.broadcast_to(value, shape), replay.point_axis, 0)
            for name, value in (("mean", distribution.mean), ("variance", distribution.variance))
        }
        return out if levels is None else out | {"distribution": distribution}

    results = _Points(replay)
    solve = None if levels is None else MixtureQuantiles(levels)
    for rows, chunk in replay.chunks(moments):
        means, variances = chunk["mean"], chunk["variance"]
        results.put("mean", rows, means.mean(axis=0))
        results.put("epistemic_variance", rows, means.var(axis=0))
        results.put("aleatoric_variance", rows, variances.mean(axis=0))
        if solve is not None:
            values = solve(chunk["distribution"])
            values = np.moveaxis(values, 1 + replay.point_axis, 1)
            results.put("quantiles", rows, np.moveaxis(values, 1, 0))
        if return_draws:
            results.put("draws", rows, np.moveaxis(means, 1, 0))
    arrays = results.arrays
    quantiles = arrays.get("quantiles")
    return RegressionPrediction(
        draws=_by_chain(replay, arrays.get("draws")),
        _replay=replay,
        mean=arrays["mean"],
        epistemic_variance=arrays["epistemic_variance"],
        aleatoric_variance=arrays["aleatoric_variance"],
        quantiles=None if quantiles is None else np.moveaxis(quantiles, 1, 0),
    )


def _classification(replay: Replay, return_draws: bool) -> ClassificationPrediction:
    results = _Points(replay)
    for rows, logs in replay.chunks(lambda d: jnp.moveaxis(log_probs(d), replay.point_axis, 0)):
        each = np.exp(logs)
        probs = each.mean(axis=0)
        # p log p with log p from the draw itself, so that p = 0 gives 0.
        expected = -np.sum(each * np.maximum(logs, np.finfo(logs.dtype).min), axis=-1).mean(axis=0)
        total = -np.sum(probs * np.log(np.maximum(probs, np.finfo(probs.dtype).tiny)), axis=-1)
        results.put("probs", rows, probs)
        results.put("expected_entropy", rows, expected)
        results.put("mutual_information", rows, np.maximum(total - expected, 0))
        if return_draws:
            results.put("draws", rows, np.moveaxis(each, 1, 0))
    arrays = results.arrays
    return ClassificationPrediction(
        draws=_by_chain(replay, arrays.pop("draws", None)), _replay=replay, **arrays
    )


class _Points:
    """Arrays with one entry for each point, filled chunk by chunk."""

    def __init__(self, replay: Replay):
        self.num_points = replay.num_points
        self.arrays: dict[str, np.ndarray] = {}

    def put(self, name: str, rows: slice, values: np.ndarray) -> None:
        """Store the rows of a chunk; `values` may end in padding."""
        if name not in self.arrays:
            self.arrays[name] = np.empty((self.num_points, *values.shape[1:]), values.dtype)
        self.arrays[name][rows] = values[: rows.stop - rows.start]


def _by_chain(replay: Replay, values: np.ndarray | None) -> np.ndarray | None:
    if values is None:
        return None
    values = np.moveaxis(values, 1, 0)
    return values.reshape(replay.draws.num_chains, replay.draws.num_draws, *values.shape[1:])
