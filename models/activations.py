"""Activation functions by name."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

from ppl_bnn.arguments import check_choice

Activation: TypeAlias = str | Callable[[jax.Array], jax.Array]

_BY_NAME = {
    "swish": jax.nn.swish,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
    "sigmoid": jax.nn.sigmoid,
    "mish": jax.nn.mish,
    "elu": jax.nn.elu,
    "sin": jnp.sin,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
}


def check_activation(activation: Activation) -> None:
    """Refuse what `activate` does not know.

    Raises
    ------
    ValueError
        If there is no such name; lists the names and suggests the nearest.
    """
    if not callable(activation):
        check_choice("activation", activation, _BY_NAME, also=" or a callable")


def activate(activation: Activation, x: jax.Array) -> jax.Array:
    """Apply an activation function, given by name or as a callable.

    Networks keep the name, because JAX's activation functions cannot be pickled. All but "relu"
    and "leaky_relu" have a continuous derivative, which HMC needs: its energy error is of second
    order in the step size only where a trajectory crosses no kink.

    Parameters
    ----------
    activation : {"swish", "tanh", "gelu", "softplus", "sigmoid", "mish", "elu", "sin", "relu", \
"leaky_relu"} or callable
        Name or function.
    x : jax.Array
        Any shape.

    Returns
    -------
    jax.Array
        Shape of `x`.
    """
    return activation(x) if callable(activation) else _BY_NAME[activation](x)
