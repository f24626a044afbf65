"""What all priors over weights share: kinds of parameters, their fan-in, and event shapes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import jax
import numpy as np
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ppl_bnn.arguments import is_number

PriorFunction: TypeAlias = Callable[[str, tuple[int, ...]], dist.Distribution | jax.Array]
Prior: TypeAlias = (
    dist.Distribution | PriorFunction | Mapping[str, dist.Distribution | PriorFunction]
)
BiasPrior: TypeAlias = dist.Distribution | ArrayLike | None


class WeightPrior(ABC):
    """A prior of every parameter of a network, from the parameter's path and shape.

    Attributes
    ----------
    fan_in : bool
        Whether weights are divided by ``fan_in ** fan_in_power``.
    bias : Distribution, float or None
        Prior of biases, or the standard deviation of a centred normal; None for that of the
        weights, whose fan-in is one.
    """

    fan_in: bool
    bias: BiasPrior
    fan_in_power: ClassVar[float] = 0.5

    def __call__(self, path: str, shape: tuple[int, ...]) -> dist.Distribution | jax.Array:
        """Give the prior of one parameter, or its value where that is sampled in parts."""
        if is_bias(path, shape):
            if isinstance(self.bias, dist.Distribution):
                return self.bias
            if self.bias is not None:
                return dist.Normal(0.0, self.bias)
            return self.of_weight(path, shape, 1.0)
        divisor = fan_in(path, shape) ** self.fan_in_power if self.fan_in else 1.0
        return self.of_weight(path, shape, 1.0 / divisor)

    @abstractmethod
    def of_weight(
        self, path: str, shape: tuple[int, ...], factor: float
    ) -> dist.Distribution | jax.Array:
        """Give the prior of one parameter, its scale multiplied by `factor`."""


def is_bias(path: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is added or multiplied on its own, and not in a sum over inputs."""
    return len(shape) < 2 or path.rpartition(".")[2] == "bias"


def fan_in(path: str, shape: tuple[int, ...]) -> int:
    """Number of terms in the sum that a weight enters, from the parameter's name and shape.

    Raises
    ------
    ValueError
        If the name is none of those that flax and Equinox give to weights.
    """
    *parents, parameter = path.split(".")
    if parameter == "kernel":
        # Attention projects (in) to (heads, features): only there is the fan-in in front.
        projects_to_heads = parents and parents[-1] in ("query", "key", "value")
        return shape[0] if projects_to_heads else math.prod(shape[:-1])
    if parameter.startswith("weight"):
        return math.prod(shape[1:])
    if parameter == "embedding":
        return 1  # a row is picked: of a one-hot input all but one term are zero
    raise ValueError(
        f"the fan-in of parameter {path!r} with shape {shape} is not known, since it is named none "
        "of 'kernel', 'weight' and 'embedding'; give it a prior of its own: "
        f"prior={{{path!r}: dist.Normal(0, 1), '*': priors.fan_in_normal()}}"
    )


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


def check_positive(**arguments: Any) -> None:
    """Refuse what is no positive and finite number.

    A scale that is itself sampled arrives as an array, whose value is not known in a trace; it
    passes, as do distributions, and None as the prior of biases.
    """
    for name, value in arguments.items():
        if isinstance(value, dist.Distribution | jax.core.Tracer):
            continue
        if name == "bias" and value is None:
            continue
        is_one = is_number(value) or (isinstance(value, np.ndarray) and value.ndim == 0)
        if not is_one or not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive and finite number, got {value!r}")


def check_positive_or_prior(argument: str, value: Any, what: str, instead: str) -> None:
    """Refuse what is no positive number, and a prior that allows negative ones.

    `what` the argument is, and a prior to take `instead`, are words for the message.
    """
    if not isinstance(value, dist.Distribution):
        check_positive(**{argument: value})
        return
    lower = getattr(value.support, "lower_bound", 0.0)
    may_be_negative = not isinstance(lower, jax.core.Tracer) and np.any(np.asarray(lower) < 0)
    if value.support is dist.constraints.real or may_be_negative:
        raise ValueError(
            f"{argument} is {what}, but its prior {type(value).__name__} allows negative values; "
            f"take, for instance, {instead}"
        )
