"""A network inside a ready model function: its inputs, its outputs and the targets."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Shaped

from ppl_bnn.priors import Prior
from ppl_bnn.random_module import random_module

AnyArray: TypeAlias = Array | np.ndarray
# a dictionary or a NamedTuple holds the inputs of a network that takes several
Inputs: TypeAlias = Shaped[AnyArray, "N *features"] | Mapping[str, Any] | tuple[Any, ...]


def num_rows(x: Inputs) -> int:
    """Number of rows of the inputs."""
    return len(jax.tree.leaves(x)[0])


def outputs_of(net: Any, prior: Prior, x: Inputs) -> Shaped[Array, "N outputs"]:
    """Sample the weights of a network as the sites ``net/...``, and apply it.

    Raises
    ------
    ValueError
        If the network's output does not have one row for each row of `x` and one axis more, or if
        `x` is a tuple without names.
    """
    if hasattr(x, "_asdict"):
        x = x._asdict()
    if isinstance(x, tuple):
        raise ValueError(
            "x is a tuple; give several inputs as a dictionary by the names of the network's "
            "arguments: {'x': x, 'mask': mask}"
        )
    random_net = random_module("net", net, prior)
    outputs = random_net(**x) if isinstance(x, Mapping) else random_net(x)
    if outputs.ndim != 2 or outputs.shape[0] != num_rows(x):
        shapes = jax.tree.map(lambda leaf: leaf.shape, x)
        raise ValueError(
            f"net gives shape {outputs.shape} for x of shape {shapes}, expected "
            f"({num_rows(x)}, outputs): keep the last axis, even for one output"
        )
    return outputs


def squeeze_one(outputs: Shaped[Array, "N outputs"]) -> Shaped[Array, "N *outputs"]:
    """Outputs without their last axis, if it has length one."""
    return outputs[:, 0] if outputs.shape[1] == 1 else outputs


def check_targets(outputs: Array, y: AnyArray | None, what: str) -> None:
    """Refuse targets that do not have the shape of what the network says of them."""
    if y is None or y.shape == outputs.shape:
        return
    if y.shape == (*outputs.shape, 1):
        cure = "pass y[:, 0]"
    else:
        cure = "check out_features of the network and the number of rows of y"
    raise ValueError(
        f"y has shape {y.shape}, but the {what} that net gives have shape {outputs.shape} (the "
        f"rows of x, and the targets if there are several); {cure}"
    )
