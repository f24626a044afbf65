"""Options of networks: checks of sizes, and the text that shows them."""

from typing import Any

from ppl_bnn.arguments import check_integer


def check_sizes(**sizes: object) -> None:
    """Refuse sizes that are not positive integers.

    Raises
    ------
    ValueError
        Names the first of them.
    """
    for name, size in sizes.items():
        check_integer(name, size, 1)


def describe(name: str, *positional: Any, **keywords: Any) -> str:
    """Give the text of the call that builds a network."""
    arguments = [repr(value) for value in positional]
    arguments += [f"{key}={value!r}" for key, value in keywords.items()]
    return f"{name}({', '.join(arguments)})"
