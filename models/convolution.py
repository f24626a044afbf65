"""Convolutions whose gradients are fast on CPUs, in compiled loops and for many chains.

On CPUs XLA runs the gradient of a convolution inside ``fori_loop`` and ``scan`` on a slow path (jax
issue 12868), and a convolution under `jax.vmap` over its kernel, as chains side by side need it, as
a slow grouped one. A leapfrog trajectory is such a loop.

`conv_general_dilated` goes into flax's ``nnx.Conv(..., conv_general_dilated=...)``. On CPUs it

- computes the gradient of the kernel as one matrix product for each offset in its window, and that
  of the input as an ordinary forward convolution;
- maps over kernels, one convolution after the other, each of them over all cores.

What it does not cover (groups, dilation, channels first, mixed types) it leaves to `jax.lax`, and
other platforms all. The platform is that of `jax.default_backend()` while tracing: a choice at
lowering (`jax.lax.platform_dependent`) would carry both versions through every transformation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
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


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve(
    lhs: jax.Array, rhs: jax.Array, strides: tuple[int, ...], pads: Pads, precision: Any
) -> jax.Array:
    return _mappable(strides, pads, precision)(lhs, rhs)


def _forward(lhs, rhs, strides, pads, precision):
    return _convolve(lhs, rhs, strides, pads, precision), (lhs, rhs)


def _backward(strides, pads, precision, residuals, cotangent):
    lhs, rhs = residuals
    return (
        _input_gradient(cotangent, rhs, lhs.shape[1:-1], strides, pads, precision),
        _kernel_gradient(cotangent, lhs, rhs.shape[:-2], strides, pads, precision),
    )


_convolve.defvjp(_forward, _backward)


def _input_gradient(cotangent, rhs, space, strides, pads, precision):
    """Convolve the cotangent, spread by the strides, with the kernel turned round."""
    window = rhs.shape[:-2]
    border = []
    for size, width, stride, (low, _), out in zip(
        space, window, strides, pads, cotangent.shape[1:-1], strict=True
    ):
        before = width - 1 - low
        spread = (out - 1) * stride + 1
        border.append((before, size + width - 1 - before - spread))
    if any(stride > 1 for stride in strides) or any(min(pair) < 0 for pair in border):
        interiors = [(*pair, stride - 1) for pair, stride in zip(border, strides, strict=True)]
        cotangent = lax.pad(
            cotangent, jnp.zeros((), cotangent.dtype), [(0, 0, 0), *interiors, (0, 0, 0)]
        )
        border = [(0, 0)] * len(window)
    turned = jnp.flip(rhs, range(len(window))).swapaxes(-1, -2)
    return _convolve(cotangent, turned, (1,) * len(window), tuple(border), precision)


def _kernel_gradient(cotangent, lhs, window, strides, pads, precision):
    """Multiply what each offset of the window saw with the cotangent."""
    padded = lax.pad(
        lhs, jnp.zeros((), lhs.dtype), [(0, 0, 0), *((*p, 0) for p in pads), (0, 0, 0)]
    )
    out = cotangent.shape[1:-1]
    over_rows_and_space = tuple(range(lhs.ndim - 1))
    products = []
    for offset in product(*map(range, window)):
        stop = [at + (n - 1) * s + 1 for at, n, s in zip(offset, out, strides, strict=True)]
        seen = lax.slice(
            padded,
            (0, *offset, 0),
            (lhs.shape[0], *stop, lhs.shape[-1]),
            (1, *strides, 1),
        )
        products.append(
            lax.dot_general(
                seen, cotangent, ((over_rows_and_space,) * 2, ((), ())), precision=precision
            )
        )
    return jnp.stack(products).reshape(*window, lhs.shape[-1], cotangent.shape[-1])


@lru_cache
def _mappable(strides: tuple[int, ...], pads: Pads, precision: Any):
    """Convolution that is mapped over kernels one by one."""

    @jax.custom_batching.custom_vmap
    def convolve(lhs, rhs):
        return lax.conv_general_dilated(
            lhs,
            rhs,
            strides,
            pads,
            dimension_numbers=_channels_last(len(strides)),
            precision=precision,
        )

    @convolve.def_vmap
    def over_kernels(_, is_mapped, lhs, rhs):
        lhs_is_mapped, rhs_is_mapped = is_mapped
        if not rhs_is_mapped:
            rows = convolve(lhs.reshape(-1, *lhs.shape[2:]), rhs)
            return rows.reshape(*lhs.shape[:2], *rows.shape[1:]), True
        if not lhs_is_mapped:
            return lax.map(lambda kernel: convolve(lhs, kernel), rhs), True
        return lax.map(lambda pair: convolve(*pair), (lhs, rhs)), True

    return convolve


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
