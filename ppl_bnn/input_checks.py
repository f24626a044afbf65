"""Checks that a network makes of its inputs' values, before any work is done on them.

In a traced program values are not known, so a network alone cannot tell that a token id lies beyond
its vocabulary. A network with a method ``check_inputs(*inputs, **kwargs)`` has it called here, on
the very arrays that the model hands it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax

from ppl_bnn.rows import concretely, is_array, seeded_trace

Call = tuple[Callable, tuple, dict]
_calls: ContextVar[list[Call] | None] = ContextVar("calls of networks that check", default=None)


def note_call(net: Any, inputs: tuple, kwargs: dict) -> None:
    """Remember that a model calls a network with these inputs."""
    calls = _calls.get()
    if calls is not None and hasattr(net, "check_inputs"):
        calls.append((net.check_inputs, inputs, kwargs))


def check_inputs(model: Callable, args: tuple, kwargs: dict) -> set[int]:
    """Have each network of a model check what it is called with.

    Returns
    -------
    set of int
        Which leaves of the arguments the networks have checked, as they are. These may hold NaN
        where the network says so.

    Raises
    ------
    ValueError
        Whatever the network's ``check_inputs`` raises.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    where = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    if any(isinstance(leaves[i], jax.core.Tracer) for i in where):
        return set()
    checks: list[Callable] = []
    checked: set[int] = set()

    def calls(arrays: list) -> list[tuple[tuple, dict]]:
        filled = list(leaves)
        for i, array in zip(where, arrays, strict=True):
            filled[i] = array
        found: list[Call] = []
        token = _calls.set(found)
        try:
            seeded_trace(model, *jax.tree.unflatten(treedef, filled))
        finally:
            _calls.reset(token)
        checks[:] = [check for check, _, _ in found]
        handed_over = {id(leaf) for _, *given in found for leaf in jax.tree.leaves(given)}
        checked.update(
            i for i, array in zip(where, arrays, strict=True) if id(array) in handed_over
        )
        return [(inputs, options) for _, inputs, options in found]

    arrays = [leaves[i] for i in where]
    jax.eval_shape(calls, arrays)
    by_networks = set(checked)  # the compiled run below has other arrays
    if not checks:
        return by_networks
    with concretely():
        # compiled, what the inputs do not depend on (the network itself) is not computed
        values = jax.jit(calls)(arrays)
    for check, (inputs, options) in zip(checks, values, strict=True):
        check(*inputs, **options)
    return by_networks
