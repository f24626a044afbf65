"""Priors under which all weights are independent, with a scale that is given."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ppl_bnn.priors.base import BiasPrior, PriorFunction, WeightPrior, check_positive


def normal(
    scale: ArrayLike = 1.0, *, fan_in: bool = False, bias: BiasPrior = None
) -> PriorFunction:
    """Give independent ``Normal(0, scale)`` priors.

    Parameters
    ----------
    scale : float or scalar array
        Standard deviation of each weight; it may be sampled (a hyperprior). Izmailov et al. (2021,
        "What are Bayesian neural network posteriors really like?") use one for all parameters,
        biases included.
    fan_in : bool
        Whether the scale is divided by the square root of the fan-in; see `fan_in_normal`.
    bias : Distribution or float, optional
        Prior of biases, or the standard deviation of a centred normal. The default is the prior
        of all other parameters, undivided: a bias is the weight of one constant input. A bias is a
        parameter named ``bias`` or with fewer than two dimensions (so are the scales of
        normalisation layers).

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``.

    Raises
    ------
    ValueError
        If a standard deviation is not positive; and in a call, with `fan_in`, for a parameter whose
        fan-in is not known (see `fan_in_normal`).
    """
    check_positive(scale=scale, bias=bias)
    return Normal(scale, fan_in, bias)


def fan_in_normal(gain: ArrayLike = 1.0, *, bias: BiasPrior = None) -> PriorFunction:
    """Give ``Normal(0, gain / sqrt(fan_in))`` priors, whose networks stay alike as they grow wide.

    With this scale the prior variance of a unit does not depend on the number of units before it
    (Neal, 1996, "Bayesian learning for neural networks", chapter 2). The fan-in is read from the
    parameter's name and shape: a flax ``kernel`` is (..., in, out), an Equinox ``weight`` is
    (out, in, ...), convolutions count every element of their window, and a flax ``embedding`` has
    one row for each token, of which one is picked: its fan-in is one.

    Parameters
    ----------
    gain : float or scalar array
        Standard deviation of a unit's sum of weighted inputs, if these have mean square one; it may
        be sampled (a hyperprior).
    bias : Distribution or float, optional
        Prior of biases, or the standard deviation of a centred normal. The default is `gain`: a
        bias is the weight of one constant input, so that its fan-in is one. A bias is a parameter
        named ``bias`` or with fewer than two dimensions (so are the scales of normalisation
        layers).

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``. It raises a ValueError for a parameter of two or more
        dimensions with another name, of which the fan-in is not known; give these a prior of
        their own. The weights of ``equinox.nn.Embedding`` cannot be told from those of a dense
        layer.

    Raises
    ------
    ValueError
        If a standard deviation is not positive.
    """
    check_positive(gain=gain, bias=bias)
    return FanInNormal(gain, bias)


def laplace(
    scale: ArrayLike = 1.0, *, fan_in: bool = False, bias: BiasPrior = None
) -> PriorFunction:
    """Give independent ``Laplace(0, scale)`` priors: standard deviation ``sqrt(2) * scale``.

    Parameters
    ----------
    scale : float or scalar array
        Mean absolute value of each weight; it may be sampled.
    fan_in, bias
        As in `normal`.

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``.

    Raises
    ------
    ValueError
        As `normal` does.
    """
    check_positive(scale=scale, bias=bias)
    return Laplace(scale, fan_in, bias)


def logistic(
    scale: ArrayLike = 1.0, *, fan_in: bool = False, bias: BiasPrior = None
) -> PriorFunction:
    """Give independent ``Logistic(0, scale)`` priors: standard deviation ``pi / sqrt(3) * scale``.

    Parameters
    ----------
    scale : float or scalar array
        Scale of each weight; it may be sampled. Izmailov et al. (2021) compare it with a normal
        prior at equal variance.
    fan_in, bias
        As in `normal`.

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``.

    Raises
    ------
    ValueError
        As `normal` does.
    """
    check_positive(scale=scale, bias=bias)
    return Logistic(scale, fan_in, bias)


def student_t(
    df: ArrayLike, scale: ArrayLike = 1.0, *, fan_in: bool = False, bias: BiasPrior = None
) -> PriorFunction:
    """Give independent ``StudentT(df, 0, scale)`` priors.

    The standard deviation is ``scale * sqrt(df / (df - 2))`` for `df` above 2; else there is none.

    Parameters
    ----------
    df : float or scalar array
        Degrees of freedom; few make the tails heavy. It may be sampled, as may `scale`.
    scale : float or scalar array
        Scale of each weight.
    fan_in, bias
        As in `normal`.

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``.

    Raises
    ------
    ValueError
        If `df` is not positive, and as `normal` does.
    """
    check_positive(df=df, scale=scale, bias=bias)
    return StudentT(df, scale, fan_in, bias)


def cauchy(
    scale: ArrayLike = 1.0, *, fan_in: bool = False, bias: BiasPrior = None
) -> PriorFunction:
    """Give independent ``Cauchy(0, scale)`` priors, which have no standard deviation.

    Parameters
    ----------
    scale : float or scalar array
        Half of the weights are smaller than this, in absolute value; it may be sampled.
    fan_in : bool
        Whether the scale is divided by the fan-in itself, not its root: a sum of n Cauchy variables
        is n times as wide as one (Neal, 1996, section 2.2).
    bias : Distribution or float, optional
        As in `normal`.

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``.

    Raises
    ------
    ValueError
        As `normal` does.
    """
    check_positive(scale=scale, bias=bias)
    return Cauchy(scale, fan_in, bias)


def normal_mixture(
    scales: Sequence[float] = (40**-0.5, 160**-0.5),
    weights: Sequence[float] | None = None,
    *,
    fan_in: bool = False,
    bias: BiasPrior = None,
) -> PriorFunction:
    """Give independent priors that are mixtures of centred normals.

    The standard deviation is the root of the weighted mean of ``scales**2``.

    Parameters
    ----------
    scales : sequence of float
        Standard deviations of the parts. The default is a mixture of variances 1/40 and 1/160, as
        in the comparison of priors of Izmailov et al. (2021).
    weights : sequence of float, optional
        Probabilities of the parts, equal by default; they are divided by their sum.
    fan_in, bias
        As in `normal`.

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``.

    Raises
    ------
    ValueError
        If a scale or a weight is not positive, or their numbers differ; and as `normal` does.
    """
    weights = [1.0] * len(scales) if weights is None else weights
    if len(scales) == 0 or len(weights) != len(scales):
        raise ValueError(
            f"scales and weights must have one number for each part, got {len(scales)} scales and "
            f"{len(weights)} weights"
        )
    for scale, weight in zip(scales, weights, strict=True):
        check_positive(scales=scale, weights=weight, bias=bias)
    shares = tuple(float(weight) / sum(weights) for weight in weights)
    return NormalMixture(tuple(map(float, scales)), shares, fan_in, bias)


@dataclass(frozen=True)
class OneScale(WeightPrior):
    """A prior of a family that has a centre, which is zero, and a scale."""

    scale: ArrayLike
    fan_in: bool
    bias: BiasPrior
    family: ClassVar[type[dist.Distribution]]

    def of_weight(self, path: str, shape: tuple[int, ...], factor: float) -> dist.Distribution:
        """Give the prior of one parameter, its scale multiplied by `factor`."""
        return self.family(0.0, self.scale * factor)


class Normal(OneScale):
    """What `normal` returns."""

    family = dist.Normal


class Laplace(OneScale):
    """What `laplace` returns."""

    family = dist.Laplace


class Logistic(OneScale):
    """What `logistic` returns."""

    family = dist.Logistic


class Cauchy(OneScale):
    """What `cauchy` returns."""

    family = dist.Cauchy
    fan_in_power = 1.0


@dataclass(frozen=True)
class FanInNormal(WeightPrior):
    """What `fan_in_normal` returns."""

    gain: ArrayLike
    bias: BiasPrior
    fan_in: bool = field(default=True, init=False, repr=False)

    def of_weight(self, path: str, shape: tuple[int, ...], factor: float) -> dist.Distribution:
        """Give the prior of one parameter, its scale multiplied by `factor`."""
        return dist.Normal(0.0, self.gain * factor)


@dataclass(frozen=True)
class StudentT(WeightPrior):
    """What `student_t` returns."""

    df: ArrayLike
    scale: ArrayLike
    fan_in: bool
    bias: BiasPrior

    def of_weight(self, path: str, shape: tuple[int, ...], factor: float) -> dist.Distribution:
        """Give the prior of one parameter, its scale multiplied by `factor`."""
        return dist.StudentT(self.df, 0.0, self.scale * factor)


@dataclass(frozen=True)
class NormalMixture(WeightPrior):
    """What `normal_mixture` returns."""

    scales: tuple[float, ...]
    weights: tuple[float, ...]
    fan_in: bool
    bias: BiasPrior

    def of_weight(self, path: str, shape: tuple[int, ...], factor: float) -> dist.Distribution:
        """Give the prior of one parameter, its scales multiplied by `factor`."""
        parts = dist.Normal(0.0, factor * np.asarray(self.scales))
        return dist.MixtureSameFamily(dist.Categorical(np.asarray(self.weights)), parts)
