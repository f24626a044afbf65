"""Checks of single arguments: names, integers, numbers."""

import difflib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


def check_choice(argument: str, value: object, choices: Iterable[str], also: str = "") -> None:
    """Refuse a value that is not one of the names.

    Parameters
    ----------
    argument : str
        The name of the argument, for the message.
    value : object
        What was given.
    choices : iterable of str
        The names.
    also : str
        What else the argument may be, for the message: ``" or a callable"``.

    Raises
    ------
    ValueError
        Lists the names and suggests the nearest.
    """
    names = list(choices)
    if isinstance(value, str) and value in names:
        return
    nearest = difflib.get_close_matches(str(value).lower(), names, n=1)
    suggestion = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"`{argument}` must be one of {names}{also}, got {value!r}{suggestion}")


def check_integer(argument: str, value: Any, least: int) -> None:
    """Refuse what is no integer, or too small a one.

    Raises
    ------
    ValueError
        Says which argument, what it must be, and what came.
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < least:
        raise ValueError(f"`{argument}` must be an integer of at least {least}, got {value!r}.")


def is_number(value: Any) -> bool:
    """Whether a value is one number; True and False are none."""
    is_scalar = isinstance(value, jax.Array) and value.ndim == 0
    return (isinstance(value, int | float | np.number) or is_scalar) and not isinstance(value, bool)
