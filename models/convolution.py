"""Convolutions whose gradients are fast on CPUs, in compiled loops and for many chains.

On CPUs XLA runs the gradient of a convolution inside ``fori_loop`` and ``scan`` on a slow path (jax
issue 12868), and a convolution under `jax.vmap` over its kernel, as chains side by side need it, as
a slow grouped one. A leapfrog trajectory is such a loop.

`conv_general_dilated` goes into flax's ``nnx.Conv(..., conv_general_dilated=...)``. On CPUs it

- computes the gradient of the kernel as one matrix product for each offset in its window, and that
  of the input as an ordinary forward convolution;
- takes the kernels of a mapped axis one after the other, each with all cores.

What it does not cover (groups, dilation, channels first, mixed types) it leaves to `jax.lax`, and
other platforms all. The platform is that of `jax.default_backend()` while tracing: a choice at
lowering (`jax.lax.platform_dependent`) would carry both versions through every transformation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Pads = tuple[tuple[int, int], ...]


def conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """`jax.lax.conv_general_dilated`, by another route where that is faster.

    Parameters
    ----------
    lhs : jax.Array
        Inputs; with flax's dimension numbers (N, *space, channels in).
    rhs : jax.Array
        Kernel; with flax's dimension numbers (*window, channels in, channels out).
    window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, \
batch_group_count, precision, preferred_element_type, out_sharding
        As in `jax.lax.conv_general_dilated`.

    Returns
    -------
    jax.Array
        With flax's dimension numbers (N, *space, channels out).

    Raises
    ------
    TypeError
        On a CPU, under forward-mode differentiation (`jax.jvp`, `jax.jacfwd`, `jax.hessian`), which
        a rule for the backward pass excludes. Reverse mode can be applied more than once.
    """
    numbers = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    num_space = lhs.ndim - 2
    options = {
        "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation,
        "dimension_numbers": numbers,
        "feature_group_count": feature_group_count,
        "batch_group_count": batch_group_count,
        "precision": precision,
        "preferred_element_type": preferred_element_type,
    }
    is_covered = (
        jax.default_backend() == "cpu"
        and numbers == _channels_last(num_space)
        and all(step == 1 for step in (*(lhs_dilation or ()), *(rhs_dilation or ())))
        and feature_group_count == batch_group_count == 1
        and preferred_element_type is None
        and out_sharding is None
        and lhs.dtype == rhs.dtype
        and jnp.issubdtype(lhs.dtype, jnp.floating)
    )
    if not is_covered:
        return lax.conv_general_dilated(
            lhs, rhs, window_strides, padding, out_sharding=out_sharding, **options
        )
    strides = tuple(window_strides)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(lhs.shape[1:-1], rhs.shape[:-2], strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    lhs, rhs = _varying_alike(lhs, rhs)
    return _convolve(lhs, rhs, strides, pads, precision)


# A convolution, the gradient of its input and that of its kernel are bilinear, and each is the
# adjoint of the others in one argument: the rules below close, so reverse mode can be repeated.


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve(
    lhs: jax.Array, rhs: jax.Array, strides: tuple[int, ...], pads: Pads, precision: Any
) -> jax.Array:
    def convolve(lhs, rhs):
        numbers = _channels_last(len(strides))
        return lax.conv_general_dilated(
            lhs, rhs, strides, pads, dimension_numbers=numbers, precision=precision
        )

    return _one_by_one(convolve, fold=True)(lhs, rhs)


def _convolve_forward(lhs, rhs, strides, pads, precision):
    return _convolve(lhs, rhs, strides, pads, precision), (lhs, rhs)


def _convolve_backward(strides, pads, precision, residuals, cotangent):
    lhs, rhs = residuals
    return (
        _input_gradient(cotangent, rhs, lhs.shape[1:-1], strides, pads, precision),
        _kernel_gradient(cotangent, lhs, rhs.shape[:-2], strides, pads, precision),
    )


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _input_gradient(cotangent, rhs, space, strides, pads, precision):
    """Convolve the cotangent, spread by the strides, with the kernel turned round."""
    window = rhs.shape[:-2]
    borders = []
    for size, width, stride, (low, _), out in zip(
        space, window, strides, pads, cotangent.shape[1:-1], strict=True
    ):
        before = width - 1 - low
        spread = (out - 1) * stride + 1
        borders.append((before, size + width - 1 - before - spread))
    if any(stride > 1 for stride in strides) or any(min(border) < 0 for border in borders):
        spaced = [(*border, stride - 1) for border, stride in zip(borders, strides, strict=True)]
        cotangent = _pad(cotangent, spaced)
        borders = [(0, 0)] * len(window)
    turned = jnp.flip(rhs, range(len(window))).swapaxes(-1, -2)
    return _convolve(cotangent, turned, (1,) * len(window), tuple(borders), precision)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _kernel_gradient(cotangent, lhs, window, strides, pads, precision):
    """Multiply what each offset of the window saw with the cotangent."""
    offsets = np.array([(0, *offset, 0) for offset in product(*map(range, window))])
    over_rows_and_space = ((tuple(range(lhs.ndim - 1)),) * 2, ((), ()))

    def gradient(cotangent, lhs):
        padded = _pad(lhs, [(*pair, 0) for pair in pads])
        reach = [(n - 1) * s + 1 for n, s in zip(cotangent.shape[1:-1], strides, strict=True)]
        shape = (lhs.shape[0], *reach, lhs.shape[-1])

        def at(offset):
            seen = lax.dynamic_slice(padded, list(offset), shape)
            seen = lax.slice(seen, (0,) * len(shape), shape, (1, *strides, 1))
            return lax.dot_general(seen, cotangent, over_rows_and_space, precision=precision)

        # a loop, since a program with a product for each offset takes long to compile
        return lax.map(at, offsets).reshape(*window, lhs.shape[-1], cotangent.shape[-1])

    return _one_by_one(gradient, fold=False)(cotangent, lhs)


def _kernel_gradient_forward(cotangent, lhs, window, strides, pads, precision):
    return _kernel_gradient(cotangent, lhs, window, strides, pads, precision), (cotangent, lhs)


def _kernel_gradient_backward(window, strides, pads, precision, residuals, direction):
    cotangent, lhs = residuals
    return (
        _convolve(lhs, direction, strides, pads, precision),
        _input_gradient(cotangent, direction, lhs.shape[1:-1], strides, pads, precision),
    )


_kernel_gradient.defvjp(_kernel_gradient_forward, _kernel_gradient_backward)


def _one_by_one(function: Callable, *, fold: bool) -> Callable:
    """Make `jax.vmap` over both arguments a loop; with `fold`, over the first alone more rows."""
    mappable = jax.custom_batching.custom_vmap(function)

    @mappable.def_vmap
    def mapped(_, is_mapped, first, second):
        if not is_mapped[1] and fold:
            rows = mappable(first.reshape(-1, *first.shape[2:]), second)
            return rows.reshape(*first.shape[:2], *rows.shape[1:]), True
        if not is_mapped[1]:
            return lax.map(lambda one: mappable(one, second), first), True
        if not is_mapped[0]:
            return lax.map(lambda one: mappable(first, one), second), True
        return lax.map(lambda pair: mappable(*pair), (first, second)), True

    return mappable


def _pad(x: jax.Array, space: Sequence[tuple[int, int, int]]) -> jax.Array:
    """Zeros around and between the cells: below, above and between, for each axis of space."""
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *space, (0, 0, 0)])


def _channels_last(num_space: int) -> lax.ConvDimensionNumbers:
    space = tuple(range(1, num_space + 1))
    data = (0, num_space + 1, *space)
    kernel = (num_space + 1, num_space, *(axis - 1 for axis in space))
    return lax.ConvDimensionNumbers(data, kernel, data)


def _varying_alike(*arrays: jax.Array) -> list[jax.Array]:
    """Arrays that vary over the same axes of a `jax.shard_map`.

    Spreading the kernel before the rule makes its gradient be summed over devices after the rule.
    """
    varying = [_varying_axes(array) for array in arrays]
    union = frozenset().union(*varying)
    return [
        lax.pcast(array, tuple(union - has), to="varying") if union - has else array
        for array, has in zip(arrays, varying, strict=True)
    ]


def _varying_axes(array: jax.Array) -> frozenset[str]:
    aval = jax.typeof(array)
    # the attribute's name in JAX up to 0.10.0, and since
    return aval.vma if hasattr(aval, "vma") else aval.manual_axis_type.varying
