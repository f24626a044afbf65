"""Options of networks: checks of them, and the text that shows them."""

import difflib
from collections.abc import Iterable
from typing import Any


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
    raise ValueError(f"{argument} must be one of {names}{also}, got {value!r}{suggestion}")


def check_sizes(**sizes: object) -> None:
    """Refuse sizes that are not positive integers.

    Raises
    ------
    ValueError
        Names the first of them.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def describe(name: str, *positional: Any, **keywords: Any) -> str:
    """Give the text of the call that builds a network."""
    arguments = [repr(value) for value in positional]
    arguments += [f"{key}={value!r}" for key, value in keywords.items()]
    return f"{name}({', '.join(arguments)})"
