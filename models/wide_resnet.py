"""Wide residual networks."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from ppl_bnn.models.activations import Activation, activate
from ppl_bnn.models.images import ImageClassifier, conv, dense
from ppl_bnn.models.normalization import make_norm, normalize
from ppl_bnn.models.options import check_sizes, describe


class PreActivationBlock(nnx.Module):
    """Twice normalisation, activation and a 3x3 convolution, added to the input.

    Where the shape changes, a 1x1 convolution of the normalised input takes the input's place.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        strides: int,
        *,
        norm: str,
        activation: Activation,
        rngs: nnx.Rngs,
    ):
        use_bias = norm == "none"
        self.norms = nnx.List([make_norm(norm, n, rngs) for n in (in_channels, out_channels)])
        self.convs = nnx.List(
            [
                conv(in_channels, out_channels, 3, rngs, strides=strides, use_bias=use_bias),
                conv(out_channels, out_channels, 3, rngs, use_bias=use_bias),
            ]
        )
        self.activation = activation
        self.has_shortcut = strides > 1 or in_channels != out_channels
        if self.has_shortcut:
            self.shortcut = conv(
                in_channels, out_channels, 1, rngs, strides=strides, use_bias=use_bias
            )

    def __call__(self, x: Float[Array, "N H W C"]) -> Float[Array, "N h w D"]:
        """Apply the block."""
        y = activate(self.activation, normalize(self.norms[0], x))
        if self.has_shortcut:
            x = self.shortcut(y)
        y = activate(self.activation, normalize(self.norms[1], self.convs[0](y)))
        return x + self.convs[1](y)


class WideResNet(ImageClassifier):
    """A wide residual network for small images, such as WRN-28-10: ``WideResNet(28, 10)``.

    36.46 million parameters in the kernels of WRN-28-10 for 10 classes. The parameters are
    ``conv.kernel``; for the blocks i ``blocks.i.convs.j.kernel`` and ``blocks.i.norms.j.gamma`` and
    so on with j = 0 and 1; ``blocks.i.shortcut.kernel`` at the start of each stage; ``norm.gamma``
    and so on; ``dense.kernel`` and ``dense.bias``. Convolutions have biases only if there is no
    normalisation.

    Parameters
    ----------
    depth : int
        Number of convolutions, shortcuts not counted, and the dense layer: 6 n + 4 with n blocks in
        each of three stages.
    widen : int
        Factor of the channels after the stem.
    num_classes : int
        Number of outputs.
    norm : {"group", "frn", "none", "batch"}
        Normalisation, as in `ppl_bnn.models.normalization.make_norm`. "batch" is for deterministic
        baselines alone.
    width : int
        Channels of the stem, 16 in the paper.
    activation : str or callable
        As in `ppl_bnn.models.activations.activate`.
    in_channels : int
        Channels of the images.
    rngs : flax.nnx.Rngs, optional
        Keys for the initial weights, ``nnx.Rngs(0)`` by default.

    Raises
    ------
    ValueError
        If a size is not positive, the depth is not 6 n + 4, or a name is unknown; and in a call, if
        x is not of shape (N, height, width, in_channels).

    References
    ----------
    Zagoruyko and Komodakis (2016), *Wide residual networks*, table 1, without dropout.
    """

    def __init__(
        self,
        depth: int = 28,
        widen: int = 10,
        num_classes: int = 10,
        *,
        norm: str = "group",
        width: int = 16,
        activation: Activation = "swish",
        in_channels: int = 3,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(
            describe(
                "WideResNet",
                depth,
                widen,
                num_classes,
                norm=norm,
                width=width,
                activation=activation,
            ),
            activation=activation,
            in_channels=in_channels,
            norm=norm,
            num_classes=num_classes,
            width=width,
            widen=widen,
        )
        check_sizes(depth=depth)
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depth must be 10, 16, 22, 28 or another 6 n + 4, got {depth}")
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.conv = conv(in_channels, width, 3, rngs, use_bias=norm == "none")
        blocks, channels = [], width
        for stage in range(3):
            size = width * widen * 2**stage
            for position in range((depth - 4) // 6):
                strides = 2 if stage and not position else 1
                blocks.append(
                    PreActivationBlock(
                        channels, size, strides, norm=norm, activation=activation, rngs=rngs
                    )
                )
                channels = size
        self.blocks = nnx.List(blocks)
        self.norm = make_norm(norm, channels, rngs)
        self.dense = dense(channels, num_classes, rngs)

    def __call__(self, x: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "N K"]:
        """Give logits (N, num_classes) for images (N, height, width, in_channels)."""
        units: jax.Array = self.conv(self.check_images(x))
        for block in self.blocks:
            units = block(units)
        units = activate(self.activation, normalize(self.norm, units))
        return self.dense(jnp.mean(units, axis=(1, 2)))
