"""What a model function, or a setting, is, as text that is the same in every process."""

from __future__ import annotations

import functools
import types
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from numpyro.distributions import Distribution

Number = bool | int | float | complex | str | bytes | None


def identity(value: Any) -> str:
    """Code of a function, with what it holds: numbers, arrays, distributions, other functions.

    Of flax NNX networks it holds how they were built, and not the values of their weights. Of
    other objects it holds the type: two models that differ only inside such an object, or in
    globals other than numbers, have the same identity.
    """
    return repr(_identity(value, frozenset()))


def _identity(value: Any, above: frozenset[int]) -> Any:
    if isinstance(value, Number):
        return repr(value)
    if id(value) in above:
        return "..."
    inside = functools.partial(_identity, above=above | {id(value)})
    if isinstance(value, nnx.Variable):
        content = value.get_value()
        return type(value).__qualname__, np.shape(content), str(getattr(content, "dtype", ""))
    if isinstance(value, nnx.Module):
        settings = {k: v for k, v in vars(value).items() if not k.startswith("_pytree")}
        return type(value).__qualname__, inside(settings)
    if isinstance(value, types.CodeType):
        return value.co_code, [inside(constant) for constant in value.co_consts]
    if isinstance(value, types.FunctionType):
        cells = [inside(_content(cell)) for cell in value.__closure__ or ()]
        named = [value.__globals__.get(name) for name in value.__code__.co_names]
        numbers = [repr(number) for number in named if isinstance(number, Number)]
        defaults = inside(value.__defaults__), inside(value.__kwdefaults__)
        return value.__qualname__, inside(value.__code__), cells, defaults, numbers
    if isinstance(value, types.MethodType):
        return inside(value.__func__), type(value.__self__).__qualname__
    if isinstance(value, functools.partial):
        return inside(value.func), inside(value.args), inside(value.keywords)
    if isinstance(value, Mapping):
        return sorted((repr(key), inside(content)) for key, content in value.items())
    if isinstance(value, tuple | list):
        return [inside(content) for content in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, Distribution):
        # by name, since NumPyro flattens its fields in an order that differs between processes
        names = type(value).gather_pytree_data_fields()
        return type(value).__qualname__, inside({name: vars(value).get(name) for name in names})
    if callable(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        return type(value).__qualname__, inside(vars(value))  # a model that is an object
    is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
    if is_array and not isinstance(value, jax.core.Tracer):
        is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if is_key else value)
        return array.shape, array.dtype.str, zlib.crc32(array.tobytes())
    return type(value).__qualname__


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None
