"""VGG-16."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from ppl_bnn.arguments import check_choice
from ppl_bnn.models.activations import Activation, activate
from ppl_bnn.models.images import ImageClassifier, conv, dense
from ppl_bnn.models.normalization import make_norm, normalize
from ppl_bnn.models.options import describe
from ppl_bnn.models.pooling import POOLINGS, pool

DEPTHS = (2, 2, 3, 3, 3)  # convolutions of each stage
WIDTHS = (1, 2, 4, 8, 8)  # their channels, in units of the first


class VGG16(ImageClassifier):
    """VGG-16 for small images: thirteen 3x3 convolutions in five stages, then three dense layers.

    14.71 million parameters in the kernels of the convolutions. The parameters are
    ``convs.i.kernel`` and ``norms.i.gamma`` and so on, i = 0 to 12; ``dense.j.kernel`` and
    ``dense.j.bias``, j = 0 to 2. Convolutions have biases only if there is no normalisation.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    norm : {"group", "frn", "none", "batch"}
        Normalisation after each convolution, as in `ppl_bnn.models.normalization.make_norm`. The
        paper has none. "batch" is for deterministic baselines alone.
    pooling : {"average", "max"}
        Pooling after each stage; the paper's maximum has kinks.
    width : int
        Channels of the first stage, 64 in the paper.
    hidden_size : int
        Units of the two hidden dense layers. The paper's 4,096 are for the 7x7 features of large
        images; here the mean of the features over space goes in.
    activation : str or callable
        As in `ppl_bnn.models.activations.activate`.
    in_channels : int
        Channels of the images.
    rngs : flax.nnx.Rngs, optional
        Keys for the initial weights, ``nnx.Rngs(0)`` by default.

    Raises
    ------
    ValueError
        If a size is not positive or a name is unknown; and in a call, if x is not of shape
        (N, height, width, in_channels) or smaller than 32 x 32.

    References
    ----------
    Simonyan and Zisserman (2015), *Very deep convolutional networks for large-scale image
    recognition*, table 1, column D.
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        norm: str = "group",
        pooling: str = "average",
        width: int = 64,
        hidden_size: int = 512,
        activation: Activation = "swish",
        in_channels: int = 3,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(
            describe("VGG16", num_classes, norm=norm, pooling=pooling, width=width),
            activation=activation,
            in_channels=in_channels,
            norm=norm,
            num_classes=num_classes,
            width=width,
            hidden_size=hidden_size,
        )
        check_choice("pooling", pooling, POOLINGS)
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.pooling = pooling
        convs, norms, channels = [], [], in_channels
        for depth, factor in zip(DEPTHS, WIDTHS, strict=True):
            for _ in range(depth):
                convs.append(conv(channels, width * factor, 3, rngs, use_bias=norm == "none"))
                norms.append(make_norm(norm, width * factor, rngs))
                channels = width * factor
        self.convs, self.norms = nnx.List(convs), nnx.List(norms)
        self.dense = nnx.List(
            [
                dense(channels, hidden_size, rngs),
                dense(hidden_size, hidden_size, rngs),
                dense(hidden_size, num_classes, rngs),
            ]
        )

    def __call__(self, x: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "N K"]:
        """Give logits (N, num_classes) for images (N, height, width, in_channels)."""
        units: jax.Array = self.check_images(x)
        layers = iter(zip(self.convs, self.norms, strict=True))
        for depth in DEPTHS:
            for _ in range(depth):
                convolve, norm = next(layers)
                units = activate(self.activation, normalize(norm, convolve(units)))
            units = pool(units, self.pooling, 2)
        units = jnp.mean(units, axis=(1, 2))
        *hidden, last = self.dense
        for layer in hidden:
            units = activate(self.activation, layer(units))
        return last(units)
