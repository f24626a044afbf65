"""LeNet-5."""

from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from ppl_bnn.arguments import check_choice
from ppl_bnn.models.activations import Activation, activate
from ppl_bnn.models.images import ImageClassifier, conv, dense
from ppl_bnn.models.options import describe
from ppl_bnn.models.pooling import POOLINGS, pool


class LeNet(ImageClassifier):
    """LeNet-5: two 5x5 convolutions, each with pooling, then three dense layers.

    61,706 parameters for 10 classes and images of 28 x 28 x 1: ``convs.i.kernel`` and
    ``convs.i.bias``, i = 0 and 1; ``dense.j.kernel`` and ``dense.j.bias``, j = 0 to 2.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    image_size : sequence of two int
        Height and width of the images, at least 12; (28, 28) is that of MNIST.
    pooling : {"average", "max"}
        Pooling after each convolution; a maximum has kinks.
    width : int
        Channels of the first convolution, 6 in the paper; the other layers go with it.
    activation : str or callable
        As in `ppl_bnn.models.activations.activate`; "tanh" is nearest to the paper.
    in_channels : int
        Channels of the images, 1 for MNIST.
    rngs : flax.nnx.Rngs, optional
        Keys for the initial weights, ``nnx.Rngs(0)`` by default.

    Raises
    ------
    ValueError
        If a size is not positive or a name is unknown; and in a call, if x is not of shape
        (N, height, width, in_channels) or of another size.

    References
    ----------
    LeCun, Bottou, Bengio and Haffner (1998), *Gradient-based learning applied to document
    recognition*, section II.B, with all channels connected and a plain dense layer as output.
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        image_size: Sequence[int] = (28, 28),
        pooling: str = "average",
        width: int = 6,
        activation: Activation = "swish",
        in_channels: int = 1,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(
            describe("LeNet", num_classes, image_size=tuple(image_size), width=width),
            activation=activation,
            in_channels=in_channels,
            num_classes=num_classes,
            width=width,
        )
        check_choice("pooling", pooling, POOLINGS)
        if len(image_size) != 2 or min(image_size) < 12:
            raise ValueError(
                f"image_size must be height and width, at least 12 each, got {image_size}"
            )
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.image_size, self.pooling = tuple(image_size), pooling
        channels = (16 * width) // 6
        self.convs = nnx.List(
            [
                conv(in_channels, width, 5, rngs),
                conv(width, channels, 5, rngs, padding="VALID"),
            ]
        )
        height, breadth = ((size // 2 - 4) // 2 for size in image_size)
        sizes = (height * breadth * channels, 20 * width, 14 * width, num_classes)
        self.dense = nnx.List([dense(sizes[i], sizes[i + 1], rngs) for i in range(len(sizes) - 1)])

    def __call__(self, x: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "N K"]:
        """Give logits (N, num_classes) for images (N, height, width, in_channels)."""
        units: jax.Array = self.check_images(x)
        if units.shape[1:3] != self.image_size:
            raise ValueError(
                f"x has shape {x.shape}, but this LeNet was built for images of {self.image_size}; "
                "build it with image_size"
            )
        for convolve in self.convs:
            units = pool(activate(self.activation, convolve(units)), self.pooling, 2)
        units = units.reshape(units.shape[0], -1)
        *hidden, last = self.dense
        for layer in hidden:
            units = activate(self.activation, layer(units))
        return last(units)
