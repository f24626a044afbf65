"""Arguments that are one of a few names."""

import difflib
from collections.abc import Iterable


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
