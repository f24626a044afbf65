"""Pooling whose gradient is fast on CPUs inside compiled loops."""

import functools
from itertools import product

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from ppl_bnn.arguments import check_choice

POOLINGS = ("average", "max")


def pool(
    x: Float[Array, "N *space C"],
    pooling: str,
    window: int,
    *,
    stride: int | None = None,
    padding: int = 0,
) -> Float[Array, "N *smaller C"]:
    """Average or largest value of each window, over all axes of space.

    XLA's gradients of window reductions run on a slow path inside loops, as those of its
    convolutions do; so windows are taken by reshaping where they do not overlap, and else as one
    slice for each offset.

    Parameters
    ----------
    x : jax.Array
        Channels last.
    pooling : {"average", "max"}
        The average is smooth, the maximum has kinks. Where a maximum is attained more than once,
        the gradient is shared equally.
    window : int
        Width of the windows on each axis.
    stride : int, optional
        Distance of the windows; by default their width. What is left over at the end is dropped.
    padding : int
        Cells added on both sides of each axis, which never are a maximum and count as zeros in an
        average.

    Returns
    -------
    jax.Array
        Channels last.

    Raises
    ------
    ValueError
        If `pooling` is another word or x is smaller than the window.
    """
    check_choice("pooling", pooling, POOLINGS)
    stride = window if stride is None else stride
    space = [size + 2 * padding for size in x.shape[1:-1]]
    if min(space) < window:
        raise ValueError(
            f"x has shape {x.shape}, which is smaller than the pooling window of width {window}; "
            "the inputs of the network are too small"
        )
    if padding:
        fill = -jnp.inf if pooling == "max" else 0.0
        border = [(0, 0), *[(padding, padding)] * len(space), (0, 0)]
        x = jnp.pad(x, border, constant_values=fill)
    out = [(size - window) // stride + 1 for size in space]
    if stride == window:
        return _by_reshape(x, pooling, window, out)
    return _by_slices(x, pooling, window, stride, out)


def _by_reshape(x: jax.Array, pooling: str, window: int, out: list[int]) -> jax.Array:
    kept = lax.slice(x, [0] * x.ndim, [x.shape[0], *(n * window for n in out), x.shape[-1]])
    blocks = kept.reshape(x.shape[0], *(w for n in out for w in (n, window)), x.shape[-1])
    axes = tuple(range(2, 2 * len(out) + 1, 2))
    return jnp.mean(blocks, axis=axes) if pooling == "average" else jnp.max(blocks, axis=axes)


def _by_slices(x: jax.Array, pooling: str, window: int, stride: int, out: list[int]) -> jax.Array:
    def cells(offset: tuple[int, ...]) -> jax.Array:
        stop = [at + (n - 1) * stride + 1 for at, n in zip(offset, out, strict=True)]
        steps = (1, *[stride] * len(out), 1)
        return lax.slice(x, (0, *offset, 0), (x.shape[0], *stop, x.shape[-1]), steps)

    offsets = [cells(offset) for offset in product(range(window), repeat=len(out))]
    if pooling == "average":
        return sum(offsets[1:], offsets[0]) / len(offsets)
    return functools.reduce(jnp.maximum, offsets)
