"""Priors by name, for configuration files and command lines."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from ppl_bnn.arguments import check_choice
from ppl_bnn.priors import independent, scale_mixtures
from ppl_bnn.priors.base import PriorFunction

BUILDERS: dict[str, Callable[..., PriorFunction]] = {
    builder.__name__: builder
    for builder in (
        independent.normal,
        independent.fan_in_normal,
        independent.laplace,
        independent.logistic,
        independent.student_t,
        independent.cauchy,
        independent.normal_mixture,
        scale_mixtures.hierarchical,
        scale_mixtures.horseshoe,
        scale_mixtures.regularized_horseshoe,
    )
}


def get(name: str, **options: Any) -> PriorFunction:
    """Give the prior of this name.

    Parameters
    ----------
    name : str
        Name of one of the functions of `ppl_bnn.priors`, such as ``"laplace"``.
    **options
        What that function takes.

    Returns
    -------
    callable
        What that function returns.

    Raises
    ------
    ValueError
        If there is no prior of that name; the nearest name is suggested.

    Examples
    --------
    >>> get("laplace", scale=0.2)
    Laplace(scale=0.2, fan_in=False, bias=None)
    """
    check_choice("name", name, BUILDERS)
    return BUILDERS[name](**options)


def how_to_write(name: str) -> str:
    """What to write in place of a prior that was given as a string: the one of the nearest name."""
    nearest = [*get_close_matches(name.lower(), BUILDERS, n=1), "fan_in_normal"][0]
    return f"write ppl_bnn.priors.{nearest}(...), or ppl_bnn.priors.get({nearest!r}, ...)"
