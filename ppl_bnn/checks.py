"""Checks of a model's arguments and observations, before anything is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_bnn.rows import concretely, is_array


def named_arguments(model: Callable, args: tuple, kwargs: dict) -> list[tuple[str, Any]]:
    """Arguments in the order of their leaves, named as in the model's signature."""
    try:
        bound = inspect.signature(model).bind(*args, **kwargs)
        positional = [name for name in bound.arguments if name not in kwargs]
    except (TypeError, ValueError):
        positional = []
    positional += [f"argument {i}" for i in range(len(positional), len(args))]
    return [*zip(positional, args, strict=False), *sorted(kwargs.items())]


def leaf_names(model: Callable, args: tuple, kwargs: dict) -> list[str]:
    """A name for each leaf of (args, kwargs), in the words of the model's signature."""
    return [
        name + jax.tree_util.keystr(path)
        for name, value in named_arguments(model, args, kwargs)
        for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]
    ]


def check_arguments(model: Callable, args: tuple, kwargs: dict) -> None:
    """Refuse what is no array of numbers, and data without rows.

    Raises
    ------
    ValueError
        Names the argument and what is wrong.
    """
    for name, value in named_arguments(model, args, kwargs):
        numbers = jax.tree.leaves(value) if isinstance(value, list) else []
        if numbers and all(isinstance(number, int | float) for number in numbers):
            raise ValueError(f"`{name}` is a list; pass an array: `numpy.asarray({name})`.")
    for name, leaf in zip(
        leaf_names(model, args, kwargs), jax.tree.leaves((args, kwargs)), strict=True
    ):
        if hasattr(leaf, "to_numpy"):
            raise ValueError(
                f"`{name}` is a {type(leaf).__name__}; pass an array: `{name}.to_numpy()`."
            )
        if not is_array(leaf) or isinstance(leaf, jax.core.Tracer):
            continue
        if leaf.ndim and leaf.shape[0] == 0:
            raise ValueError(f"`{name}` has shape {leaf.shape}: there are no rows to learn from.")
        if leaf.dtype.kind in "OSUc":
            raise ValueError(
                f"`{name}` has dtype {leaf.dtype}; convert it to numbers: `{name}.astype(float)`, "
                f"or, for class labels, `numpy.unique({name}, return_inverse=True)[1]`."
            )
        refuse_cut_integers(name, leaf)


def refuse_cut_integers(name: str, leaf: Any) -> None:
    """Refuse integers that JAX would cut to 32 bits, which makes others of them."""
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if leaf.dtype.kind not in "iu" or dtype == leaf.dtype or not leaf.size:
        return
    limits, least, largest = np.iinfo(dtype), leaf.min(), leaf.max()
    if least < limits.min or largest > limits.max:
        raise ValueError(
            f"`{name}` holds integers from {least} to {largest}, and JAX would cut them to "
            f"{limits.bits} bits. Recode them, or set `jax_enable_x64`."
        )


def check_finite(model: Callable, args: tuple, kwargs: dict, but_for: set[int]) -> None:
    """Refuse data that are not finite, but for the leaves that networks have checked themselves.

    Raises
    ------
    ValueError
        Names the argument, and where it is first so.
    """
    leaves = zip(leaf_names(model, args, kwargs), jax.tree.leaves((args, kwargs)), strict=True)
    for i, (name, leaf) in enumerate(leaves):
        if i in but_for or not is_array(leaf) or isinstance(leaf, jax.core.Tracer):
            continue
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        with np.errstate(over="ignore"), concretely():
            # as JAX will see it: a float64 of 1e39 is no float32
            finite = np.asarray(jnp.isfinite(leaf))
        if not finite.all():
            bad = np.argwhere(~finite)
            first = tuple(int(i) for i in bad[0])
            raise ValueError(
                f"`{name}` has {len(bad)} entries that are NaN or infinite, the first at index "
                f"{first}. Remove or impute them; to leave observations out, give them a finite "
                "value and mask them with `numpyro.handlers.mask`."
            )


def explain_failure(error: Exception, model: Callable, args: tuple, kwargs: dict) -> Exception:
    """The error to raise when the model cannot be run on its arguments."""
    names = leaf_names(model, args, kwargs)
    rows = {
        name: leaf.shape[0]
        for name, leaf in zip(names, jax.tree.leaves((args, kwargs)), strict=True)
        if is_array(leaf) and leaf.ndim
    }
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"`{name}` has {length}" for name, length in rows.items())
        return ValueError(
            f"the arguments have different numbers of rows: {listed}. Features and targets "
            "must have one "
            f"row per datum each. ({error})"
        )
    if isinstance(error, NotImplementedError):
        return ValueError(
            "a prior of the model cannot be sampled (ImproperUniform?), so neither a start nor "
            f"a scale follows from it; give a proper prior, however wide ({error!r})"
        )
    shapes = {
        name: f"{leaf.dtype}{leaf.shape}" if is_array(leaf) else repr(leaf)[:40]
        for name, leaf in zip(names, jax.tree.leaves((args, kwargs)), strict=True)
    }
    error.add_note(f"The model was run on {shapes}.")
    return error


def check_observations(model: Callable, args: tuple, kwargs: dict, trace: dict[str, dict]) -> None:
    """Refuse observed values that do not fit their distribution's shape, type or support.

    Parameters
    ----------
    model, args, kwargs
        The model and what it is called with.
    trace : dict
        What `abstract_trace` gives for them.
    """
    leaves = jax.tree.leaves((args, kwargs))
    names = leaf_names(model, args, kwargs)
    for site_name, site in trace.items():
        if site["type"] != "sample" or not site["is_observed"] or site["auxiliary"]:
            continue
        leaf = None if site["leaf"] is None else leaves[site["leaf"]]
        what = f"the observed value of {site_name!r}"
        if leaf is not None:
            what += f" (`{names[site['leaf']]}`)"
        kind = type(base(site["fn"])).__name__
        if site["shape"] != site["fn_shape"]:
            mismatch = ValueError(
                f"{what} has shape {site['shape']}, but its distribution, {kind}, has shape "
                f"{site['fn_shape']}. A network's output of shape (rows, 1) needs `[..., 0]` to "
                "match targets of shape (rows,)."
            )
            raise explain_failure(mismatch, model, args, kwargs)
        check_support(what, site["fn"], site["dtype"], leaf)


def check_support(what: str, fn: Any, dtype: Any, values: Any) -> None:
    """Refuse values of another type than a distribution's, and, where known, beyond its support."""
    kind, support = type(base(fn)).__name__, fn.support
    if support.is_discrete and jnp.issubdtype(dtype, jnp.inexact):
        raise ValueError(
            f"{what} has dtype {dtype}, but {kind} needs integers: pass `y.astype(int)`."
        )
    bounds = jax.tree.leaves(support)
    if values is None or any(isinstance(x, jax.core.Tracer) for x in (values, *bounds)):
        return
    values = np.asarray(values)
    inside = np.asarray(support(values))
    if not inside.all():
        outside = np.unique(values[~inside] if inside.shape == values.shape else values)
        shown = ", ".join(str(v) for v in outside[:5])
        raise ValueError(
            f"{what} has {int((~inside).sum())} entries outside the support of {kind}, "
            f"{_words(support)}: {shown}{', ...' if len(outside) > 5 else ''}."
        )


def base(fn: Any) -> Any:
    """The distribution inside `Independent`, `ExpandedDistribution` and `MaskedDistribution`."""
    while hasattr(fn, "base_dist") and type(fn).__name__ in (
        "Independent",
        "ExpandedDistribution",
        "MaskedDistribution",
    ):
        fn = fn.base_dist
    return fn


def _words(support: Any) -> str:
    lower, upper = (getattr(support, f"{side}_bound", None) for side in ("lower", "upper"))
    if lower is not None and upper is not None:
        between = "integers" if support.is_discrete else "numbers"
        return f"{between} from {lower} to {upper}"
    return str(support)


def refuse_no_observations(
    model: Callable, args: tuple, kwargs: dict, trace: dict[str, dict]
) -> None:
    """Refuse data that the model does not observe: the targets were forgotten, most likely."""
    if any(site["type"] == "sample" and site["is_observed"] for site in trace.values()):
        return
    leaves = zip(leaf_names(model, args, kwargs), jax.tree.leaves((args, kwargs)), strict=True)
    given = [name for name, leaf in leaves if is_array(leaf)]
    if given:
        raise ValueError(
            f"the model was given {given} but observes nothing: were the targets forgotten, as in "
            "`mcmc.run(key, x)` for `mcmc.run(key, x, y)`? To draw from the prior, use "
            "`numpyro.infer.Predictive`."
        )


def refuse_latents(trace: dict[str, dict], names: Sequence[str]) -> None:
    """Refuse discrete latent sites: there is no gradient in them."""
    for name in names:
        if trace[name]["fn"].support.is_discrete:
            raise ValueError(
                f"the latent site {name!r} is discrete ({type(base(trace[name]['fn'])).__name__}): "
                "Hamiltonian Monte Carlo needs continuous sites. Sum it out by hand."
            )
