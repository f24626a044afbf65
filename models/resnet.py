"""Residual networks: ResNet-20-FRN, ResNet-18 and ResNet-50."""

from collections.abc import Sequence

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


class Block(nnx.Module):
    """Convolutions with normalisation, added to their input.

    Two of 3x3 for a basic block, or 1x1, 3x3 and 1x1 with four times as many channels for a
    bottleneck. Where the shape changes, the input passes a 1x1 convolution with normalisation.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        strides: int,
        *,
        bottleneck: bool,
        norm: str,
        use_bias: bool,
        activation: Activation,
        rngs: nnx.Rngs,
    ):
        windows = (1, 3, 1) if bottleneck else (3, 3)
        widths = (width, width, 4 * width) if bottleneck else (width, width)
        at_stride = 1 if bottleneck else 0
        convs, norms, channels = [], [], in_channels
        for position, (window, size) in enumerate(zip(windows, widths, strict=True)):
            step = strides if position == at_stride else 1
            convs.append(conv(channels, size, window, rngs, strides=step, use_bias=use_bias))
            norms.append(make_norm(norm, size, rngs))
            channels = size
        self.convs, self.norms = nnx.List(convs), nnx.List(norms)
        self.activation = activation
        self.out_channels = channels
        self.has_shortcut = strides > 1 or channels != in_channels
        if self.has_shortcut:
            self.shortcut = conv(in_channels, channels, 1, rngs, strides=strides, use_bias=use_bias)
            self.shortcut_norm = make_norm(norm, channels, rngs)

    def __call__(self, x: Float[Array, "N H W C"]) -> Float[Array, "N h w D"]:
        """Apply the block."""
        y = x
        for position, (convolve, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = activate(self.activation, y) if position else y
            y = normalize(norm, convolve(y))
        if self.has_shortcut:
            x = normalize(self.shortcut_norm, self.shortcut(x))
        return activate(self.activation, x + y)


class ResNet(ImageClassifier):
    """What the residual networks share; build one of those below."""

    def __init__(
        self,
        described: str,
        num_classes: int,
        depths: Sequence[int],
        *,
        width: int,
        in_channels: int,
        activation: Activation,
        norm: str,
        rngs: nnx.Rngs | None,
        use_bias: bool = False,
        bottleneck: bool = False,
        stem: str = "small",
        pooling: str = "average",
    ):
        super().__init__(
            described,
            activation=activation,
            in_channels=in_channels,
            norm=norm,
            num_classes=num_classes,
            width=width,
        )
        check_choice("stem", stem, ("imagenet", "small"))
        check_choice("pooling", pooling, POOLINGS)
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.stem, self.pooling = stem, pooling
        # what normalisation adds takes the place of a bias
        use_bias = use_bias or norm == "none"
        window, strides = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv = conv(in_channels, width, window, rngs, strides=strides, use_bias=use_bias)
        self.norm = make_norm(norm, width, rngs)
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for position in range(depth):
                block = Block(
                    channels,
                    width * 2**stage,
                    2 if stage and not position else 1,
                    bottleneck=bottleneck,
                    norm=norm,
                    use_bias=use_bias,
                    activation=activation,
                    rngs=rngs,
                )
                blocks.append(block)
                channels = block.out_channels
        self.blocks = nnx.List(blocks)
        self.dense = dense(channels, num_classes, rngs)

    def __call__(self, x: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "N K"]:
        """Give logits (N, num_classes) for images (N, height, width, in_channels)."""
        units: jax.Array = self.conv(self.check_images(x))
        units = activate(self.activation, normalize(self.norm, units))
        if self.stem == "imagenet":
            units = pool(units, self.pooling, 3, stride=2, padding=1)
        for block in self.blocks:
            units = block(units)
        return self.dense(jnp.mean(units, axis=(1, 2)))


class ResNet20FRN(ResNet):
    """ResNet-20 with filter response normalisation, of Izmailov et al. (2021) for CIFAR.

    274,042 parameters for 10 classes, 279,892 for 100. They are ``conv.kernel``, ``conv.bias``,
    ``norm.gamma``, ``norm.beta``, ``norm.threshold.tau``; for the blocks i = 0 to 8
    ``blocks.i.convs.j.kernel`` and so on, ``blocks.i.norms.j.gamma`` and so on with j = 0 and 1;
    ``blocks.i.shortcut.kernel``, ``blocks.i.shortcut_norm.gamma`` and so on for i = 3 and 6;
    ``dense.kernel`` and ``dense.bias``.

    The activation follows the threshold, whose kink stays: the log posterior is not quite smooth.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    width : int
        Channels of the first of three stages, 16 in the paper; the others have two and four times
        as many.
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
        (N, height, width, in_channels).

    References
    ----------
    Izmailov, Vikram, Hoffman and Wilson (2021), *What are Bayesian neural network posteriors really
    like?*, and its released code. The shortcuts that change the shape have a convolution.
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        width: int = 16,
        activation: Activation = "swish",
        in_channels: int = 3,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(
            describe("ResNet20FRN", num_classes, width=width, activation=activation),
            num_classes,
            (3, 3, 3),
            width=width,
            in_channels=in_channels,
            activation=activation,
            norm="frn",
            use_bias=True,
            rngs=rngs,
        )


class ResNet18(ResNet):
    """ResNet-18 with a stem for small images: four stages of two basic blocks.

    11.17 million parameters in its kernels for 10 classes. Parameter paths are those of
    `ResNet20FRN`, without biases of convolutions unless there is no normalisation.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    norm : {"group", "frn", "none", "batch"}
        Normalisation, as in `ppl_bnn.models.normalization.make_norm`. "batch" is for deterministic
        baselines alone.
    width : int
        Channels of the first stage, 64 in the paper.
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
        (N, height, width, in_channels).

    References
    ----------
    He, Zhang, Ren and Sun (2016), *Deep residual learning for image recognition*, table 1, with the
    3x3 stem of their section 4.2.
    """

    def __init__(
        self,
        num_classes: int = 10,
        *,
        norm: str = "group",
        width: int = 64,
        activation: Activation = "swish",
        in_channels: int = 3,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(
            describe("ResNet18", num_classes, norm=norm, width=width, activation=activation),
            num_classes,
            (2, 2, 2, 2),
            width=width,
            in_channels=in_channels,
            activation=activation,
            norm=norm,
            rngs=rngs,
        )


class ResNet50(ResNet):
    """ResNet-50: four stages of 3, 4, 6 and 3 bottleneck blocks.

    25.50 million parameters in its kernels for 1,000 classes. Parameter paths are those of
    `ResNet18`, with j = 0 to 2.

    Parameters
    ----------
    num_classes : int
        Number of outputs.
    norm : {"group", "frn", "none", "batch"}
        Normalisation, as in `ppl_bnn.models.normalization.make_norm`. "batch" is for deterministic
        baselines alone.
    stem : {"imagenet", "small"}
        A 7x7 convolution of stride 2 and pooling of stride 2, or a 3x3 convolution of stride 1.
    pooling : {"average", "max"}
        Pooling of the stem; the paper's maximum has kinks.
    width : int
        Channels of the stem, 64 in the paper.
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
        (N, height, width, in_channels).

    References
    ----------
    He, Zhang, Ren and Sun (2016), *Deep residual learning for image recognition*, table 1; the
    stride of a block is in its 3x3 convolution, as in most implementations since.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        *,
        norm: str = "group",
        stem: str = "imagenet",
        pooling: str = "average",
        width: int = 64,
        activation: Activation = "swish",
        in_channels: int = 3,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(
            describe("ResNet50", num_classes, norm=norm, stem=stem, pooling=pooling, width=width),
            num_classes,
            (3, 4, 6, 3),
            width=width,
            in_channels=in_channels,
            activation=activation,
            norm=norm,
            rngs=rngs,
            bottleneck=True,
            stem=stem,
            pooling=pooling,
        )
