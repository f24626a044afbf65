"""What the networks for images share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ppl_bnn.arguments import check_choice
from ppl_bnn.models.activations import Activation, check_activation
from ppl_bnn.models.convolution import conv_general_dilated
from ppl_bnn.models.normalization import NORMS
from ppl_bnn.models.options import check_sizes


def he_normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Give initial weights of variance 2 / fan-in (He et al., 2015, equation 10).

    They are drawn in sizes of powers of two: a program for each shape of a large network takes
    longer to compile than the network's gradient.
    """
    size = math.prod(shape)
    drawn = jax.random.normal(key, (1 << (size - 1).bit_length(),), dtype)
    return math.sqrt(2 * shape[-1] / size) * drawn[:size].reshape(shape)


def dense(in_features: int, out_features: int, rngs: nnx.Rngs) -> nnx.Linear:
    """Give a dense layer with He's initial weights."""
    return nnx.Linear(in_features, out_features, kernel_init=he_normal, rngs=rngs)


def conv(
    in_channels: int,
    out_channels: int,
    window: int,
    rngs: nnx.Rngs,
    *,
    strides: int = 1,
    padding: str = "SAME",
    use_bias: bool = True,
) -> nnx.Conv:
    """Give a 2-D convolution with the package's derivative rule and He's initial weights."""
    return nnx.Conv(
        in_channels,
        out_channels,
        (window, window),
        strides=strides,
        padding=padding,
        use_bias=use_bias,
        kernel_init=he_normal,
        conv_general_dilated=conv_general_dilated,
        rngs=rngs,
    )


class ImageClassifier(nnx.Module):
    """Base of the networks for images: options, checks of the input, a short description."""

    def __init__(
        self,
        described: str,
        *,
        activation: Activation,
        in_channels: int,
        norm: str = "none",
        **sizes: int,
    ):
        check_activation(activation)
        check_choice("norm", norm, NORMS)
        check_sizes(in_channels=in_channels, **sizes)
        self.described = described
        self.activation = activation
        self.in_channels = in_channels

    def check_images(self, x: Any) -> jax.Array:
        """Give x as an array, if its shape is (N, height, width, channels).

        Raises
        ------
        ValueError
            If it has another number of axes or of channels.
        """
        name, channels = type(self).__name__, self.in_channels
        wanted = f"{name} takes images of shape (N, height, width, {channels})"
        if x.ndim == 4 and x.shape[-1] == channels:
            return jnp.asarray(x)
        if x.ndim == 4 and x.shape[1] == channels:
            cure = "channels come last: pass x.transpose(0, 2, 3, 1)"
        elif x.ndim == 4:
            cure = f"for images with {x.shape[-1]} channels build it with in_channels"
        elif x.ndim == 3 and channels == 1:
            cure = "add the axis of channels: pass x[..., None]"
        elif x.ndim == 3 and x.shape[-1] == channels:
            cure = "add the axis of rows: pass x[None]"
        else:
            cure = "reshape x"
        raise ValueError(f"x has shape {x.shape}, but {wanted}; {cure}")

    def __repr__(self) -> str:
        """Show how the network was built, without its arrays."""
        return self.described
