"""Activations that have a kink, found in the program that a model is traced to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

# as JAX names them in its programs
KINKED = {"relu", "relu6", "leaky_relu", "selu", "hard_tanh", "hard_sigmoid", "hard_silu"}


def find_kinks(function: Callable, *shapes: Any) -> set[str]:
    """Names of JAX's kinked activations that a function calls; nothing is computed."""
    return set(_names(jax.make_jaxpr(function)(*shapes).jaxpr)) & KINKED


def warn_kinks(function: Callable, *shapes: Any) -> None:
    """Say which kinked activations a log density goes through, if there are any."""
    found = sorted(find_kinks(function, *shapes))
    if found:
        warnings.warn(
            f"the network uses {', '.join(found)}: where a trajectory crosses its kink the "
            "gradient jumps, the leapfrog error falls with the step size instead of its square, "
            "and many small steps are needed. A smooth activation (swish, gelu, softplus, tanh) "
            "gives the same kind of network.",
            UserWarning,
            stacklevel=2,
        )


def _names(jaxpr: Jaxpr) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield str(equation.params.get("name", ""))
        for leaf in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)
        ):
            if isinstance(leaf, ClosedJaxpr):
                yield from _names(leaf.jaxpr)
            elif isinstance(leaf, Jaxpr):
                yield from _names(leaf)
