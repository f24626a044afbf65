"""New inputs of a fitted model, checked before any work is done on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_bnn.checks import refuse_cut_integers


def rows(x: Any) -> tuple[tuple, int]:
    """`x` as positional arguments of arrays, and its number of rows."""
    args = jax.tree.map(
        lambda v: v if isinstance(v, jax.Array) else np.asarray(v),
        x if type(x) is tuple else (x,),  # a NamedTuple is one argument
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
        if leaf.dtype.kind in "OSUc":
            raise ValueError(f"`x` has dtype {leaf.dtype}; convert it to numbers")
        refuse_cut_integers("x", leaf)
    return args, shapes[0][0]


def check_finite(args: tuple, but_for: set[int]) -> None:
    """Refuse inputs that are not finite, but for the leaves that networks have checked."""
    for i, leaf in enumerate(jax.tree.leaves(args)):
        if i in but_for or not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        # as JAX will see it: a float64 of 1e39 is no float32
        with np.errstate(over="ignore"):
            finite = bool(jnp.isfinite(leaf).all())
        if not finite:
            raise ValueError("`x` holds NaN or infinite values; impute or drop those rows")


def check_like_fit(model: Callable, args: tuple, fitted: dict[str, Any]) -> None:
    """Refuse inputs whose rows have another shape than those of the fit."""
    for name, arg in zip(inspect.signature(model).parameters, args, strict=False):
        value: Any = fitted.get(name)
        if not (hasattr(arg, "shape") and hasattr(value, "shape")):
            continue
        got, expected = tuple(arg.shape), tuple(value.shape)
        if got[1:] == expected[1:]:
            continue
        if len(got) == len(expected) == 2:
            words = f"`x` has {got[1]} features, the model was fitted on {expected[1]}"
        else:
            words = f"the rows of `x` have shape {got[1:]}, the model was fitted on {expected[1:]}"
        raise ValueError(f"{words} (shapes {got} and {expected}); give the columns of the fit")


def fill_from_fit(
    model: Callable, args: tuple, kwargs: dict[str, Any], fitted: dict[str, Any]
) -> dict[str, Any]:
    """Keyword arguments, with the numbers, strings and flags that the fit was called with.

    Raises
    ------
    ValueError
        If the fit was given an array in the place of a default other than None, for the default
        would be another model.
    """
    parameters = inspect.signature(model).parameters
    filled = dict(kwargs)
    for name, parameter in list(parameters.items())[len(args) :]:
        if (
            name in kwargs
            or name not in fitted
            or parameter.kind
            in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            )
        ):
            continue
        holds_arrays = any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(fitted[name]))
        if not holds_arrays:
            filled[name] = fitted[name]
        elif parameter.default is not None and parameter.default is not parameter.empty:
            raise ValueError(
                f"the model was fitted with an array as `{name}`, which is not given here; give it "
                f"by `model_kwargs={{{name!r}: ...}}`"
            )
    return filled


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
