"""Multi-layer perceptron."""

from collections.abc import Sequence
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from ppl_bnn.models.activations import Activation, activate, check_activation


class MLP(nnx.Module):
    """A multi-layer perceptron: dense layers with an activation between each two.

    Its parameters are ``layers.0.kernel`` of shape (in, out), ``layers.0.bias`` and so on.

    Parameters
    ----------
    in_features : int
        Number of input features.
    hidden_sizes : sequence of int
        Number of units of each hidden layer; an empty one makes a linear model.
    out_features : int
        Number of outputs: targets, classes, or twice the targets where the network also gives the
        noise.
    activation : str or callable
        A name that `ppl_bnn.models.activations.activate` lists, or a function. Smooth by default:
        HMC loses accuracy at every kink of a ReLU that a trajectory crosses.
    rngs : flax.nnx.Rngs, optional
        Keys for the initial weights, ``nnx.Rngs(0)`` by default. The initial weights only matter
        to a sampler that starts from them.

    Raises
    ------
    ValueError
        If a size is not positive or the activation has no such name; and in a call, if the inputs
        have another number of features.
    TypeError
        If `hidden_sizes` is not a sequence.
    """

    def __init__(
        self,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        *,
        activation: Activation = "swish",
        rngs: nnx.Rngs | None = None,
    ):
        if not isinstance(hidden_sizes, Sequence) or isinstance(hidden_sizes, str):
            raise TypeError(
                f"hidden_sizes must be a sequence, one size for each hidden layer, got "
                f"{hidden_sizes!r}; for one hidden layer of 50 units write (50,)"
            )
        sizes = (in_features, *hidden_sizes, out_features)
        if min(sizes) < 1:
            raise ValueError(
                f"in_features, hidden_sizes and out_features must be at least 1, got "
                f"{in_features}, {tuple(hidden_sizes)} and {out_features}"
            )
        check_activation(activation)
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.sizes = sizes
        self.activation = activation
        self.layers = nnx.List(
            [nnx.Linear(fan_in, fan_out, rngs=rngs) for fan_in, fan_out in pairwise(sizes)]
        )

    def __call__(self, x: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
        """Give outputs (..., out_features) for inputs (..., in_features)."""
        if x.ndim == 0 or x.shape[-1] != self.sizes[0]:
            raise ValueError(
                f"x has shape {x.shape}, but this MLP takes {self.sizes[0]} features on the last "
                "axis (in_features)"
            )
        *hidden, last = self.layers
        units = jnp.asarray(x)
        for layer in hidden:
            units = activate(self.activation, layer(units))
        return last(units)

    def __repr__(self) -> str:
        """Show how the network was built, without its arrays."""
        first, *hidden, last = self.sizes
        return f"MLP({first}, {tuple(hidden)}, {last}, activation={self.activation!r})"
