"""Rank-1 perturbations of the weights of dense layers, convolutions and recurrent cells.

Dusenberry, Jerfel, Wen, Ma, Snoek, Heller, Lakshminarayanan & Tran (2020), *Efficient and scalable
Bayesian neural nets with rank-1 factors*: a layer keeps one weight W, and what is uncertain about
it are two vectors, s over its inputs and r over its outputs, as in W o (s r^T). The perturbed
weight is never formed: x (W o (s r^T)) = ((x o s) W) o r, so that many r and s, even one pair for
each row of x, take the one product with W.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ppl_bnn.arguments import check_choice, is_number

PERTURBATIONS = ("multiplicative", "additive", "shift")
VECTORS = ("both", "r", "s")
Layer = nnx.Linear | nnx.Conv


class Constant(nnx.Variable):
    """An array of a layer that is no parameter."""


class Rank1(nnx.Module):
    """A dense layer or convolution whose weight is perturbed by two vectors.

    With W the layer's kernel (in features on its last axis but one, out features on its last) and
    b its bias, the outputs for inputs x are

    - "multiplicative": ``((x * s) W) * r + b``, the layer with kernel ``W * outer(s, r)``;
    - "additive": ``x W + (x . s) r + b``, the layer with kernel ``W + outer(s, r)``, where a
      convolution has the same outer product at every place of its window;
    - "shift": ``(x + s) W + r + b``, which moves units and not weights. It is what the paper's code
      calls additive.

    Parameters are ``layer.kernel``, ``r`` of shape (out features,), ``s`` of shape (in features,)
    and, if the layer has one, ``bias``. An `r` or `s` that comes with a leading axis of rows,
    (N, features), is one for each row of x.

    Parameters
    ----------
    layer : flax.nnx.Linear or flax.nnx.Conv
        Is copied.
    perturbation : {"multiplicative", "additive", "shift"}
        As above.
    clip : float, optional
        Values of r and s beyond ``[-clip, clip]`` count as the bound. The paper's code has 10 for
        dense layers and convolutions, where heavy-tailed factors (Cauchy) may otherwise overflow.
    vectors : {"both", "r", "s"}
        Which of the two the layer has. The other does nothing, and is no parameter.

    Raises
    ------
    TypeError
        If `layer` is neither.
    ValueError
        If another argument is none of the above, a convolution in groups, or one vector alone, is
        to perturb additively; and in a call, if r or s have neither one value for each feature nor
        one for each feature of each row.
    """

    def __init__(
        self,
        layer: Any,
        *,
        perturbation: str = "multiplicative",
        clip: float | None = None,
        vectors: str = "both",
    ):
        if not isinstance(layer, Layer):
            raise TypeError(
                f"layer must be a flax.nnx.Linear or flax.nnx.Conv, got a {type(layer).__name__}"
            )
        check_choice("perturbation", perturbation, PERTURBATIONS)
        check_choice("vectors", vectors, VECTORS)
        if perturbation == "additive" and vectors != "both":
            raise ValueError(
                f'perturbation="additive" adds the outer product of both vectors, got {vectors=}'
            )
        if clip is not None and not (is_number(clip) and clip > 0):
            raise ValueError(f"clip must be a positive number or None, got {clip!r}")
        self.perturbation, self.clip = perturbation, clip
        self.layer = nnx.clone(layer)
        self.bias = self.layer.bias
        self.layer.bias, self.layer.use_bias = nnx.data(None), False
        kernel = self.layer.kernel[...]
        if perturbation == "multiplicative":
            ends = jnp.ones, jnp.ones
        elif perturbation == "additive":  # zero, and yet with a gradient
            ends = jnp.zeros, jnp.ones
        else:
            ends = jnp.zeros, jnp.zeros
        self.neutral = 1.0 if perturbation == "multiplicative" else 0.0  # of a vector left out
        self.r = self.s = nnx.data(None)
        if vectors != "s":
            self.r = nnx.Param(ends[0](layer.out_features, kernel.dtype))
        if vectors != "r":
            self.s = nnx.Param(ends[1](layer.in_features, kernel.dtype))
        self.window = nnx.data(None)
        if perturbation == "additive" and isinstance(self.layer, nnx.Conv):
            self.window = _window(self.layer)

    def __call__(self, x: jax.Array, **kwargs: Any) -> jax.Array:
        """Give what the layer would, with its weight perturbed."""
        r, s = (self._per_row(name, x) for name in ("r", "s"))
        if self.perturbation == "multiplicative" and self.layer.in_features == 1:
            # the same, but no derivative by the input, which takes a third of a step of LeNet
            units = self.layer(x, **kwargs) * (s * r)
        elif self.perturbation == "multiplicative":
            units = self.layer(x * s, **kwargs) * r
        elif self.perturbation == "additive":
            along = jnp.sum(x * s, axis=-1, keepdims=True)
            along = along if self.window is None else self.window(along)
            units = self.layer(x, **kwargs) + along * r
        else:
            units = self.layer(x + s, **kwargs) + r
        return units if self.bias is None else units + self.bias[...]

    def _per_row(self, name: str, x: jax.Array) -> jax.Array | float:
        """The vector of that name, or one for each row, in a shape that broadcasts with x."""
        vector = getattr(self, name)
        if vector is None:
            return self.neutral
        values = vector[...]
        features = self.layer.out_features if name == "r" else self.layer.in_features
        if values.shape not in ((features,), (*x.shape[:1], features)):
            raise ValueError(
                f"{name} has shape {values.shape}, but this layer takes one value for each of its "
                f"{features} features, or one of these for each row: {(features,)} or "
                f"{(*x.shape[:1], features)}"
            )
        if self.clip is not None:
            values = jnp.clip(values, -self.clip, self.clip)
        between = (1,) * (x.ndim - values.ndim)
        return values if values.ndim == 1 else values.reshape(len(values), *between, features)


def _window(layer: nnx.Conv) -> nnx.Conv:
    """A convolution of one channel that adds up what the layer's window sees."""
    if layer.feature_group_count != 1:
        raise ValueError(
            'perturbation="additive" is for convolutions in one group, got feature_group_count='
            f"{layer.feature_group_count}"
        )
    window = nnx.clone(layer)
    window.in_features = window.out_features = 1
    kernel = layer.kernel[...]
    window.kernel_shape = (*kernel.shape[:-2], 1, 1)
    ones = jnp.ones(window.kernel_shape, kernel.dtype)
    window.kernel = Constant(ones)  # type: ignore[assignment]
    return window


class Rank1Layers(NamedTuple):
    """What is and what is not perturbed in a network."""

    rank1: tuple[str, ...]  # paths of the `Rank1` layers
    left_alone: tuple[str, ...]  # paths of other modules that have parameters of their own


def rank1(
    net: Any,
    *,
    perturbation: str = "multiplicative",
    clip: float | None = None,
    vectors: str = "both",
) -> Any:
    """Make every dense layer and convolution of a network a `Rank1` layer.

    Recurrent cells of flax are made of dense layers, and so become rank-1 in the weights of their
    inputs and of their state, ``z = ((x * s) W) * r + ((h * s') U) * r' + b``, with one r and s for
    all steps of a sequence. Embeddings, normalisations and modules with parameters of their own
    stay as they are: `rank1_layers` names them.

    Parameters
    ----------
    net : flax.nnx.Module
        Is copied.
    perturbation, clip, vectors
        Of every layer, see `Rank1`.

    Returns
    -------
    flax.nnx.Module
        Gives the outputs of `net` until r and s are moved. The parameter ``dense.kernel`` is now
        ``dense.layer.kernel``, beside ``dense.r`` and ``dense.s``.

    Raises
    ------
    TypeError
        If `net` is no flax NNX module.
    ValueError
        If it holds no dense layer and no convolution, or is rank-1 already.
    """
    if not isinstance(net, nnx.Module):
        got = f"the class {net.__name__}" if isinstance(net, type) else f"a {type(net).__name__}"
        raise TypeError(f"net must be an instance of flax.nnx.Module, got {got}")
    if rank1_layers(net).rank1:
        raise ValueError("net has rank-1 layers already; give the network that they were made of")
    net = nnx.clone(net)
    options: dict[str, Any] = {"perturbation": perturbation, "clip": clip, "vectors": vectors}
    made: dict[int, Rank1] = {}  # a layer that is used in two places stays one layer

    def convert(layer: Layer) -> Rank1:
        if id(layer) not in made:
            made[id(layer)] = Rank1(layer, **options)
        return made[id(layer)]

    if isinstance(net, Layer):
        return convert(net)
    for _, parent in list(nnx.iter_modules(net)):
        for name, child in list(nnx.iter_children(parent)):
            if isinstance(child, Layer):
                if isinstance(parent, nnx.List) and isinstance(name, int):
                    parent[name] = convert(child)
                else:
                    setattr(parent, str(name), convert(child))
    if not made:
        raise ValueError(
            f"net ({type(net).__name__}) holds no flax.nnx.Linear and no flax.nnx.Conv, so there "
            "is nothing to make rank-1; build it of these layers"
        )
    return net


def rank1_layers(net: nnx.Module) -> Rank1Layers:
    """Paths of the rank-1 layers of a network, and of what else holds parameters."""
    perturbed, others = [], []
    inside: set[int] = set()
    for path, module in nnx.iter_modules(net):
        dotted = ".".join(map(str, path))
        if isinstance(module, Rank1):
            perturbed.append(dotted)
            inside.update(id(part) for _, part in nnx.iter_modules(module))
    for path, module in nnx.iter_modules(net):
        has_own = any(isinstance(value, nnx.Param) for value in vars(module).values())
        if has_own and id(module) not in inside:
            others.append(".".join(map(str, path)))
    return Rank1Layers(tuple(sorted(perturbed)), tuple(sorted(others)))
