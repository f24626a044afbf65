"""Priors over weights: callables ``(path, shape)`` that `ppl_bnn.random_module` takes as `prior`.

To treat some parameters in another way, put a prior into a dict by path::

    prior = {"norm.scale": dist.Normal(1, 0.1), "*": priors.fan_in_normal()}
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

PriorFunction: TypeAlias = Callable[[str, tuple[int, ...]], dist.Distribution | jax.Array]
Prior: TypeAlias = (
    dist.Distribution | PriorFunction | Mapping[str, dist.Distribution | PriorFunction]
)


def normal(
    scale: ArrayLike = 1.0, *, bias: dist.Distribution | ArrayLike | None = None
) -> PriorFunction:
    """Give independent ``Normal(0, scale)`` priors.

    Parameters
    ----------
    scale : float or scalar array
        Standard deviation of each weight; it may be sampled (a hyperprior). Izmailov et al. (2021,
        "What are Bayesian neural network posteriors really like?") use one for all parameters,
        biases included.
    bias : Distribution or float, optional
        Prior of biases, or the standard deviation of a centred normal. The default is `scale`, as
        for all other parameters. A bias is a parameter named ``bias`` or with fewer than two
        dimensions (so are the scales of normalisation layers).

    Returns
    -------
    callable
        ``(path, shape) -> Distribution``.

    Raises
    ------
    ValueError
        If a standard deviation is not positive.
    """
    _check_positive("scale", scale)
    _check_positive("bias", bias)
    return Normal(scale, bias)


def fan_in_normal(
    gain: ArrayLike = 1.0, *, bias: dist.Distribution | ArrayLike | None = None
) -> PriorFunction:
    """Give ``Normal(0, gain / sqrt(fan_in))`` priors, whose networks stay alike as they grow wide.

    With this scale the prior variance of a unit does not depend on the number of units before it
    (Neal, 1996, "Bayesian learning for neural networks", chapter 2). The fan-in is read from the
    parameter's name and shape: a flax ``kernel`` is (..., in, out), an Equinox ``weight`` is
    (out, in, ...), and convolutions count every element of their window.

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
        dimensions with another name, of which the fan-in is not known (an embedding, for
        instance); give these a prior of their own. The weights of ``equinox.nn.Embedding`` cannot
        be told from those of a dense layer.

    Raises
    ------
    ValueError
        If a standard deviation is not positive.
    """
    _check_positive("gain", gain)
    _check_positive("bias", bias)
    return FanInNormal(gain, bias)


@dataclass(frozen=True)
class Normal:
    """What `normal` returns."""

    scale: ArrayLike
    bias: dist.Distribution | ArrayLike | None

    def __call__(self, path: str, shape: tuple[int, ...]) -> dist.Distribution:
        """Give the prior of one parameter."""
        if _is_bias(path, shape):
            return _bias_prior(self.bias, self.scale)
        return dist.Normal(0.0, self.scale)


@dataclass(frozen=True)
class FanInNormal:
    """What `fan_in_normal` returns."""

    gain: ArrayLike
    bias: dist.Distribution | ArrayLike | None

    def __call__(self, path: str, shape: tuple[int, ...]) -> dist.Distribution:
        """Give the prior of one parameter."""
        if _is_bias(path, shape):
            return _bias_prior(self.bias, self.gain)
        return dist.Normal(0.0, self.gain / math.sqrt(_fan_in(path, shape)))


def expand_to_event(
    distribution: dist.Distribution, shape: tuple[int, ...], owner: str
) -> dist.Distribution:
    """Broadcast a distribution to a shape and make all dimensions event dimensions.

    Parameters
    ----------
    distribution : Distribution
        Of any batch shape that broadcasts; event dimensions stay last.
    shape : tuple of int
        Shape of one sample of the result.
    owner : str
        What the distribution belongs to, for the error.

    Returns
    -------
    Distribution
        With an empty batch shape and `shape` as event shape.

    Raises
    ------
    ValueError
        If the distribution cannot have samples of that shape.
    """
    batch = shape[: len(shape) - distribution.event_dim]
    try:
        fits = batch + distribution.event_shape == shape
        fits = fits and np.broadcast_shapes(distribution.batch_shape, batch) == batch
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"the prior of {owner} does not fit: its batch shape {distribution.batch_shape} and "
            f"event shape {distribution.event_shape} do not broadcast to {shape}"
        )
    return distribution.expand(batch).to_event(len(batch))


def _is_bias(path: str, shape: tuple[int, ...]) -> bool:
    return len(shape) < 2 or path.rpartition(".")[2] == "bias"


def _fan_in(path: str, shape: tuple[int, ...]) -> int:
    *parents, parameter = path.split(".")
    if parameter == "kernel":
        # Attention projects (in) to (heads, features): only there is the fan-in in front.
        projects_to_heads = parents and parents[-1] in ("query", "key", "value")
        return shape[0] if projects_to_heads else math.prod(shape[:-1])
    if parameter.startswith("weight"):
        return math.prod(shape[1:])
    raise ValueError(
        f"fan_in_normal does not know the fan-in of parameter {path!r} with shape {shape}, since "
        "it is named neither 'kernel' nor 'weight'; give it a prior of its own: "
        f"prior={{{path!r}: dist.Normal(0, 1), '*': priors.fan_in_normal()}}"
    )


def _bias_prior(
    bias: dist.Distribution | ArrayLike | None, default: ArrayLike
) -> dist.Distribution:
    if isinstance(bias, dist.Distribution):
        return bias
    return dist.Normal(0.0, default if bias is None else bias)


def _check_positive(argument: str, value: Any) -> None:
    # A scale that is itself sampled arrives as an array, whose value is not known in a trace.
    if isinstance(value, int | float) and not 0 < value < math.inf:
        raise ValueError(f"{argument} must be a positive standard deviation, got {value}")
