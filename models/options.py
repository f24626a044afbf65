"""Options of networks: checks of sizes, and the text that shows them."""

from typing import Any


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
