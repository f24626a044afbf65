"""New inputs of a fitted model, checked before any work is done on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def rows(x: Any) -> tuple[tuple, int]:
    """`x` as positional arguments of arrays, and its number of rows."""
    args = jax.tree.map(
        lambda v: v if isinstance(v, jax.Array) else np.asarray(v),
        x if isinstance(x, tuple) else (x,),
        is_leaf=lambda v: isinstance(v, list),
    )
    leaves = jax.tree.leaves(args)
    shapes = [tuple(leaf.shape) for leaf in leaves]
    if not leaves or any(not shape for shape in shapes) or len({s[0] for s in shapes}) > 1:
        raise ValueError(
            "every array in `x` needs a leading axis of data points, of one length for all; got "
            f"shapes {shapes}"
        )
    if shapes[0][0] == 0:
        raise ValueError(f"`x` has no rows: its shape is {shapes[0]}")
    for leaf in leaves:
        isfinite = jnp.isfinite if isinstance(leaf, jax.Array) else np.isfinite
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(isfinite(leaf).all()):
            raise ValueError("`x` holds NaN or infinite values; impute or drop those rows")
    return args, shapes[0][0]


def check_like_fit(args: tuple, fit_args: tuple) -> None:
    """Refuse inputs whose rows have another shape than those of the fit."""
    for arg, fitted in zip(args, fit_args, strict=False):
        if not (hasattr(arg, "shape") and hasattr(fitted, "shape")):
            continue
        got, expected = tuple(arg.shape), tuple(fitted.shape)
        if got[1:] == expected[1:]:
            continue
        if len(got) == len(expected) == 2:
            words = f"`x` has {got[1]} features, the model was fitted on {expected[1]}"
        else:
            words = f"the rows of `x` have shape {got[1:]}, the model was fitted on {expected[1:]}"
        raise ValueError(f"{words} (shapes {got} and {expected}); give the columns of the fit")


def check_signature(model: Callable, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse a model that cannot be run on its inputs alone."""
    try:
        inspect.signature(model).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"the model cannot be called with the {len(args)} argument(s) of `x` alone ({error}): "
            "give observed arguments a default of None, several inputs as a tuple `x`, and "
            "the rest by `model_kwargs`"
        ) from error
