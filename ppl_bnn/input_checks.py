"""Checks that a network makes of its inputs' values, before any work is done on them.

In a traced program values are not known, so a network alone cannot tell that a token id lies beyond
its vocabulary. A network with a method ``check_inputs(*inputs, **kwargs)`` has it called here, on
the very arrays that the model hands it. Its attribute ``checks_finite`` names those of the method's
arguments that may hold NaN where they do not count, since the method itself refuses it elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax

from ppl_bnn.rows import concretely, is_array, seeded_trace

Call = tuple[Any, tuple, dict]  # network, inputs, keyword arguments
_calls: ContextVar[list[Call] | None] = ContextVar("calls of networks that check", default=None)


def note_call(net: Any, inputs: tuple, kwargs: dict) -> None:
    """Remember that a model calls a network with these inputs."""
    calls = _calls.get()
    if calls is not None and hasattr(net, "check_inputs"):
        calls.append((net, inputs, kwargs))


def check_inputs(model: Callable, args: tuple, kwargs: dict) -> set[int]:
    """Have each network of a model check what it is called with.

    Returns
    -------
    set of int
        Leaves of the arguments that may hold NaN, since a network has looked at them as they are.

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
    may_be_nan: set[int] = set()

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
        checks[:] = [net.check_inputs for net, _, _ in found]
        looked_at = {id(leaf) for call in found for leaf in _looked_at(*call)}
        may_be_nan.update(i for i, x in zip(where, arrays, strict=True) if id(x) in looked_at)
        return [(inputs, options) for _, inputs, options in found]

    arrays = [leaves[i] for i in where]
    jax.eval_shape(calls, arrays)
    if not checks:
        return may_be_nan
    with concretely():
        # compiled, what the inputs do not depend on (the network itself) is not computed
        values = jax.jit(calls)(arrays)
    for check, (inputs, options) in zip(checks, values, strict=True):
        check(*inputs, **options)
    return may_be_nan


def _looked_at(net: Any, inputs: tuple, kwargs: dict) -> list:
    """Arrays of a call that the network checks for NaN itself."""
    given = inspect.signature(net.check_inputs).bind(*inputs, **kwargs).arguments
    names = getattr(net, "checks_finite", ())
    return jax.tree.leaves([given[name] for name in names if name in given])
