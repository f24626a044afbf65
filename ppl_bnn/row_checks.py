"""Whether a model's log density is a sum over rows: it is run on a few, apart and together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import init_to_median

from ppl_bnn.density import site_log_prob
from ppl_bnn.rows import Rows, concretely


def check_rows(model: Callable, leaves: Sequence[Any], rows: Rows) -> None:
    """Run the model on a few rows, apart and together: the log density must add up.

    Raises
    ------
    ValueError
        If a prior or an unobserved quantity changes with the rows that the model is shown (a
        prior scaled by ``x.std()``, say), or the log likelihood of four rows is not the sum of
        that of two and two (standardisation inside the model, batch normalisation).
    """
    if rows.num_rows < 2:
        return
    picked = np.linspace(0, rows.num_rows - 1, min(4, rows.num_rows)).astype(int)
    half = len(picked) // 2
    with concretely():
        seeded = handlers.seed(model, jax.random.key(0))
    tame = handlers.substitute(seeded, substitute_fn=init_to_median(num_samples=15))

    def log_probs(args, kwargs, values):
        """Sum of each site's log density and of its absolute terms; the latent values."""
        with handlers.block():
            pinned = handlers.substitute(tame, data=values) if values else tame
            trace = handlers.trace(pinned).get_trace(*args, **kwargs)
        sampled = {n: site for n, site in trace.items() if site["type"] == "sample"}
        terms = {name: site_log_prob(site) for name, site in sampled.items()}
        sums = {n: jnp.stack([jnp.sum(lp), jnp.sum(jnp.abs(lp))]) for n, lp in terms.items()}
        return sums, {n: s["value"] for n, s in sampled.items() if not s["is_observed"]}

    row_leaves, other_leaves = rows.split(leaves)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in other_leaves):
        return  # nothing is known of them, nor can it be made up

    # compiled, for op by op it would take seconds; run once, so it need not be fast
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def compare(picked_leaves):
        together, values = log_probs(*rows.join(picked_leaves, other_leaves), {})
        parts = []
        for part in (slice(None, half), slice(half, None)):
            some = [leaf[part] for leaf in picked_leaves]
            parts.append(log_probs(*rows.join(some, other_leaves), values)[0])
        return together, *parts

    with concretely():
        compared = compare([_rows_of(leaf, picked) for leaf in row_leaves])
        together, first, second = jax.tree.map(lambda x: np.asarray(x, float), compared)
    for name, (total, size) in together.items():
        if rows.sites.get(name) is None:
            if name in rows.sites and not _close(first[name][0], total, size):
                raise ValueError(
                    f"the observed site {name!r} has no axis of rows but changes with them: it "
                    "sums over "
                    "rows, or couples them. Give it one value per row, inside "
                    "`numpyro.plate('data', x.shape[0])`, or run without `mesh` and `chunk_size`."
                )
            if not _close(first[name][0], total, size):
                raise ValueError(
                    f"the prior of {name!r} depends on which rows the model sees (a scale from "
                    "`x.std()` or "
                    "from the number of rows, perhaps): on a part of the data it would be another "
                    "prior. Compute such quantities outside the model and pass them in."
                )
        elif not _close(first[name][0] + second[name][0], total, size):
            raise ValueError(
                f"the log likelihood of {name!r} is not a sum over rows: that of rows "
                f"{picked.tolist()} is "
                f"{total:.6g}, but its parts give {first[name][0] + second[name][0]:.6g}. The "
                "model "
                "couples rows (`x.mean()`, batch normalisation, ...). Compute such quantities "
                "outside the "
                "model, or run without `mesh` and `chunk_size`."
            )


def _rows_of(leaf: Any, picked: np.ndarray) -> Any:
    """A few rows; made-up ones where the data are not known yet, under a caller's `jit`."""
    if not isinstance(leaf, jax.core.Tracer):
        return leaf[picked]
    made_up = np.random.default_rng(0).normal(size=(len(picked), *leaf.shape[1:]))
    return (
        made_up.astype(leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
        else np.zeros(made_up.shape, leaf.dtype)
    )


def _close(a: float, b: float, size: float) -> bool:
    if not np.isfinite(size):  # nothing follows from sums that overflow
        return True
    return bool(np.isclose(a, b, rtol=0, atol=1e-4 * size + 1e-6, equal_nan=True))
