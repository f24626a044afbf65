"""Which arguments of a model hold one row per datum, and which sites see them.

Sharding, chunking and subsampling replace the model's likelihood by a sum over parts of its rows.
That is right only for a model whose observed sites are conditionally independent given the latent
ones, and whose priors do not look at the rows; `row_checks.py` tries that out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers


class Rows(NamedTuple):
    """The rows of a model's data: how many, in which arguments, and seen by which sites."""

    num_rows: int
    treedef: Any  # of (args, kwargs)
    is_row: tuple[bool, ...]  # per leaf of (args, kwargs)
    sites: dict[str, int | None]  # observed site -> axis (from the right) of its rows
    deterministic: frozenset[str]  # deterministic sites that have an axis of rows

    @property
    def seen_by(self) -> frozenset[str]:
        """Observed sites that have an axis of rows."""
        return frozenset(name for name, axis in self.sites.items() if axis is not None)

    def take(self, leaves: Sequence[Any], index: Any) -> tuple[tuple, dict]:
        """Model arguments that hold the rows `index` (a slice or an integer array)."""
        taken = [
            leaf[index] if row else leaf for leaf, row in zip(leaves, self.is_row, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, taken)

    def split(self, leaves: Sequence[Any]) -> tuple[list, list]:
        """Leaves with rows and leaves without."""
        pairs = list(zip(leaves, self.is_row, strict=True))
        return [leaf for leaf, row in pairs if row], [leaf for leaf, row in pairs if not row]

    def join(self, row_leaves: Sequence[Any], other_leaves: Sequence[Any]) -> tuple[tuple, dict]:
        """Model arguments from the two lists that `split` gives."""
        with_rows, others = iter(row_leaves), iter(other_leaves)
        leaves = [next(with_rows if row else others) for row in self.is_row]
        return jax.tree.unflatten(self.treedef, leaves)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array (as opposed to a number, a flag or a string of the user's)."""
    return isinstance(leaf, np.ndarray | jax.Array) and not jax.dtypes.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def concretely() -> AbstractContextManager:
    """Context in which arrays are computed at once, also while a caller's program is traced."""
    is_traced = isinstance(jnp.zeros(()), jax.core.Tracer)
    return jax.ensure_compile_time_eval() if is_traced else nullcontext()


def seeded_trace(model: Callable, args: tuple, kwargs: dict, seed: int = 0) -> dict[str, dict]:
    """Trace of one run of the model, hidden from handlers around the caller."""
    with handlers.block():
        seeded = handlers.seed(model, jax.random.key(seed))
        return handlers.trace(seeded).get_trace(*args, **kwargs)


def abstract_trace(model: Callable, args: tuple, kwargs: dict) -> dict[str, dict]:
    """Trace of the model whose arrays are shapes only: nothing is computed.

    A site keeps ``shape`` and ``dtype`` of its value, ``batch_shape`` and ``fn_shape`` of its
    distribution, and ``leaf``, the index of the argument that is handed to ``obs=`` as it is.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    where = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    sites: dict[str, dict] = {}

    def run(arrays):
        filled = list(leaves)
        for i, array in zip(where, arrays, strict=True):
            filled[i] = array
        args, kwargs = jax.tree.unflatten(treedef, filled)
        for name, site in seeded_trace(model, args, kwargs).items():
            kept = {k: site.get(k) for k in ("type", "is_observed", "args", "cond_indep_stack")}
            kept["auxiliary"] = bool(site.get("infer", {}).get("is_auxiliary"))
            if site["type"] in ("param", "mutable"):
                kept["value"] = site["value"]
            if site["type"] in ("sample", "deterministic"):
                kept["shape"] = jnp.shape(site["value"])
            if site["type"] == "sample":
                fn = site["fn"]
                kept["dtype"] = jnp.result_type(site["value"])
                kept["batch_shape"], kept["fn_shape"] = fn.batch_shape, tuple(fn.shape())
                kept["fn"] = fn  # of use for its type and its static attributes alone
                kept["leaf"] = next(
                    (i for i, a in zip(where, arrays, strict=True) if a is site["value"]), None
                )
            sites[name] = kept

    # in the types that JAX will give them: without x64, float64 comes as float32
    arrays = [leaves[i] for i in where]
    jax.eval_shape(run, [jax.ShapeDtypeStruct(a.shape, jnp.result_type(a)) for a in arrays])
    return sites


def find_rows(
    model: Callable,
    args: tuple,
    kwargs: dict,
    data_argnames: Sequence[str] | None = None,
) -> Rows | None:
    """Find the rows of a model's data; None if the model, so called, observes nothing.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    args, kwargs
        What it is called with.
    data_argnames : sequence of str, optional
        Names of the arguments that hold rows. By default all arrays whose leading axis is as
        long as the plate that the observed sites sit in.

    Raises
    ------
    ValueError
        If a plate subsamples, a latent site has one value per row, observed sites sit in plates
        of different sizes, or no argument holds rows.
    """
    trace = abstract_trace(model, args, kwargs)
    refuse_subsampling(trace)
    observed = {
        name: site
        for name, site in trace.items()
        if site["type"] == "sample" and site["is_observed"]
    }
    if not any(not site["auxiliary"] or site["batch_shape"] for site in observed.values()):
        return None
    leaves, treedef = jax.tree.flatten((args, kwargs))
    named = _leaves_of(model, args, kwargs, data_argnames)
    lengths = {
        leaf.shape[0]
        for leaf, wanted in zip(leaves, named, strict=True)
        if wanted and is_array(leaf) and leaf.ndim
    }
    sites: dict[str, int | None] = {}
    sizes: dict[str, int] = {}
    for name, site in observed.items():
        axes = axes_of(site["cond_indep_stack"], site["batch_shape"])
        sites[name] = axis = axis_of_rows(axes, lengths)
        if axis is not None:
            sizes[name] = axes[axis]
    if not sizes:
        found = {n: s["batch_shape"] for n, s in observed.items()}
        raise ValueError(
            "no argument of the model holds the rows of its data: the observed sites have the "
            "batch "
            f"shapes {found}, the array arguments the leading axes {sorted(lengths)}. Pass the "
            "data as "
            "arguments of the model (not through a closure) and put the observed site in "
            "`numpyro.plate('data', x.shape[0])`."
        )
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"observed sites sit in plates of different sizes, {sizes}: rows cannot be split "
            "in one way for all of them. Use one plate, or run without `mesh` and `chunk_size`."
        )
    num_rows = next(iter(sizes.values()))
    is_row = tuple(
        wanted and is_array(leaf) and leaf.ndim > 0 and leaf.shape[0] == num_rows
        for leaf, wanted in zip(leaves, named, strict=True)
    )
    rows = Rows(num_rows, treedef, is_row, sites, frozenset())
    changed = _changed_shapes(model, rows, leaves, trace)
    for name in changed:
        site = trace[name]
        if site["type"] == "sample" and not site["is_observed"]:
            raise ValueError(
                f"the latent site {name!r} has one value for each of the {num_rows} rows: "
                "splitting "
                "rows would need to split the position too, which is not supported. Run "
                "without `mesh` and `chunk_size`, or integrate the site out."
            )
    return rows._replace(
        deterministic=frozenset(n for n in changed if trace[n]["type"] == "deterministic")
    )


def axes_of(plates: Sequence[Any], batch_shape: tuple[int, ...]) -> dict[int, int]:
    """Axes of a site that may run over rows, from the right, and their lengths."""
    if not plates and batch_shape:
        return {-len(batch_shape): batch_shape[0]}
    return {plate.dim: plate.size for plate in plates}


def axis_of_rows(axes: dict[int, int], lengths: Collection[int]) -> int | None:
    """The axis that is as long as the data, the outermost if there are several."""
    return min((dim for dim, length in axes.items() if length in lengths), default=None)


def _changed_shapes(model: Callable, rows: Rows, leaves: Sequence[Any], trace: dict) -> list[str]:
    """Sites that have another shape when the model is shown two rows."""
    try:
        args, kwargs = rows.take(leaves, slice(0, 2))
        few = abstract_trace(model, args, kwargs)
        for name in rows.sites:
            if few[name]["shape"] != few[name]["fn_shape"] and not few[name]["auxiliary"]:
                raise ValueError(
                    f"the observed value of {name!r} has shape {few[name]['shape']}, its "
                    f"distribution {few[name]['fn_shape']}"
                )
    except Exception as error:
        raise ValueError(
            f"the model runs on all {rows.num_rows} rows of its data, but not on two of them: "
            f"{error}. Everything that has one entry per row (features, a mask, an offset, the "
            "size of a plate) must come from the model's arguments, not from a closure."
        ) from error
    return [
        name
        for name, site in trace.items()
        if site["type"] != "plate"
        and (name not in few or few[name].get("shape") != site.get("shape"))
    ]


def refuse_subsampling(trace: dict[str, dict]) -> None:
    """Full-batch inference on a subsampled plate would freeze one minibatch, silently."""
    for name, site in trace.items():
        if site["type"] == "plate":
            size, subsample_size = site["args"]
            if subsample_size is not None and subsample_size != size:
                raise ValueError(
                    f"the plate {name!r} subsamples {subsample_size} of {size} rows, and that one "
                    "minibatch would be kept for the whole run. Remove `subsample_size` (or "
                    "`mini_batch`) from the model: HMC takes all rows, and a stochastic-gradient "
                    "kernel draws its own batches, of its `batch_size`. NumPyro's SVI takes the "
                    "model as it is."
                )


def _leaves_of(
    model: Callable, args: tuple, kwargs: dict, names: Sequence[str] | None
) -> list[bool]:
    """Per leaf of (args, kwargs), whether it belongs to one of the named arguments."""
    if names is None:
        return [True] * len(jax.tree.leaves((args, kwargs)))
    signature = inspect.signature(model)
    unknown = set(names) - set(signature.parameters)
    if unknown:
        raise ValueError(
            f"`data_argnames` has {sorted(unknown)}, but the model's arguments are "
            f"{list(signature.parameters)}."
        )
    positional = list(signature.bind(*args, **kwargs).arguments)[: len(args)]
    flags: list[bool] = []
    for name, value in [*zip(positional, args, strict=False), *sorted(kwargs.items())]:
        flags += [name in names] * len(jax.tree.leaves(value))
    return flags
