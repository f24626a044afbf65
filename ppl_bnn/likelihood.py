"""Likelihood transforms: NumPyro model in, NumPyro model out.

`full_batch` computes the log likelihood of all rows in chunks, on one device or many, with one
all-reduce a gradient; `mini_batch` estimates it from a random subset. Because both give back a
model, every NumPyro algorithm takes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax.sharding import Mesh
from numpyro import handlers
from numpyro.primitives import Messenger

from ppl_bnn.input_checks import check_inputs
from ppl_bnn.mesh import check_mesh
from ppl_bnn.row_checks import check_rows
from ppl_bnn.row_likelihood import check_chunk_size, check_mesh_fits, row_log_likelihood
from ppl_bnn.rows import Rows, find_rows, is_array


def full_batch(
    model: Callable,
    *,
    mesh: Mesh | None = None,
    chunk_size: int | None = None,
    data_argnames: Sequence[str] | None = None,
) -> Callable:
    """Compute a model's log likelihood in chunks of rows and over devices, exactly.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments.
    mesh : jax.sharding.Mesh, optional
        Rows are divided over its ``"data"`` axis; `ppl_bnn.mesh` makes one.
    chunk_size : int, optional
        Rows evaluated at once on each device. By default all of them.
    data_argnames : sequence of str, optional
        Names of the arguments that hold rows; by default the arrays whose leading axis is as long
        as the plate.

    Returns
    -------
    callable
        A model with the same latent sites, called with the same arguments, whose observed sites
        are one factor, ``"log_likelihood"``. Called without observed values it is `model`.

    Raises
    ------
    ValueError
        When the returned model is first called: if the log likelihood is not a sum over rows, a
        prior depends on them, a latent site has a value for each row, or a plate subsamples.

    Notes
    -----
    Rows that do not divide among devices are padded with weight zero; none is dropped.
    `handlers.scale` and `handlers.mask` are honoured, inside and outside. Deterministic sites that
    have an axis of rows are left out: get them from `numpyro.infer.Predictive` on `model` itself.
    With NumPyro's own `MCMC(NUTS(full_batch(model)))` set ``jit_model_args=True``, without which
    data become constants of the compiled program. `ppl_bnn.HMC` applies the transform by itself.
    """
    check_mesh(mesh)
    check_chunk_size(chunk_size)
    plan = _remembered(model, data_argnames, functools.partial(check_mesh_fits, mesh))

    @functools.wraps(model)
    def transformed(*args, **kwargs):
        rows = plan(args, kwargs)
        if rows is None:
            return model(*args, **kwargs)
        leaves = jax.tree.leaves((args, kwargs))
        few_args, few_kwargs = rows.take(leaves, slice(0, 2))
        hidden = handlers.block(model, hide_fn=functools.partial(_sees_rows, rows))
        with handlers.trace() as trace:
            result = hidden(*few_args, **few_kwargs)
        values = {
            name: site["value"]
            for name, site in trace.items()
            # sites that a handler outside has fixed are latent to the model inside
            if site["type"] in ("sample", "param", "mutable") and name not in rows.sites
        }
        log_likelihood = row_log_likelihood(model, rows, mesh=mesh, chunk_size=chunk_size)
        total, _ = log_likelihood(values, leaves)
        numpyro.factor("log_likelihood", total)
        return result

    return transformed


def mini_batch(
    model: Callable, *, batch_size: int, data_argnames: Sequence[str] | None = None
) -> Callable:
    """Estimate a model's log likelihood from a random subset of the rows, scaled by N / B.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments.
    batch_size : int
        Rows drawn, without replacement, each time the model is run.
    data_argnames : sequence of str, optional
        As in `full_batch`.

    Returns
    -------
    callable
        A model with the same sites, for SVI and stochastic-gradient methods. HMC and NUTS refuse
        it: they would keep one minibatch for the whole run. Called without observed values it is
        `model`.

    Raises
    ------
    ValueError
        As `full_batch`; and if `batch_size` is not between 1 and the number of rows.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a positive number of rows, got {batch_size!r}.")
    plan = _remembered(model, data_argnames, lambda num_rows: None)

    @functools.wraps(model)
    def transformed(*args, **kwargs):
        rows = plan(args, kwargs)
        if rows is None:
            return model(*args, **kwargs)
        if batch_size > rows.num_rows:
            raise ValueError(
                f"`batch_size` is {batch_size}, but the model was given {rows.num_rows} rows."
            )
        # a plate draws the rows, so that every engine knows a subsampled model when it sees one
        with numpyro.plate("mini_batch", rows.num_rows, subsample_size=batch_size) as index:
            pass
        leaves = [
            jnp.asarray(leaf) if row else leaf
            for leaf, row in zip(jax.tree.leaves((args, kwargs)), rows.is_row, strict=True)
        ]
        few_args, few_kwargs = rows.take(leaves, index)
        scaled = ScaleSites(model, rows.seen_by, rows.num_rows / batch_size)
        return scaled(*few_args, **few_kwargs)

    return transformed


class ScaleSites(Messenger):
    """Scales the log probability of some sites, and of no other."""

    def __init__(self, fn: Callable, names: Collection[str], factor: jax.Array | float):
        super().__init__(fn)
        self.names, self.factor = names, factor

    def process_message(self, msg: dict[str, Any]) -> None:
        """Multiply the scale of one of the sites."""
        if msg["type"] == "sample" and msg["name"] in self.names:
            msg["scale"] = self.factor if msg["scale"] is None else self.factor * msg["scale"]


def _sees_rows(rows: Rows, msg: dict[str, Any]) -> bool:
    """Sites of the two-row run that mean nothing outside it."""
    if msg["type"] == "sample":
        return msg["name"] in rows.seen_by
    if msg["type"] == "deterministic":
        return msg["name"] in rows.deterministic
    return msg["type"] == "plate"


def _remembered(
    model: Callable, data_argnames: Sequence[str] | None, check: Callable[[int], None]
) -> Callable[[tuple, dict], Rows | None]:
    """`find_rows`, with its checks, once for each combination of shapes."""
    known: dict[Any, Rows | None] = {}

    def plan(args: tuple, kwargs: dict) -> Rows | None:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        shapes = tuple((x.shape, x.dtype) if is_array(x) else repr(x) for x in leaves)
        key = (treedef, shapes)
        if key not in known:
            rows = find_rows(model, args, kwargs, data_argnames)
            if rows is not None:
                check(rows.num_rows)
                check_inputs(model, args, kwargs)
                check_rows(model, leaves, rows)
            known[key] = rows
        return known[key]

    return plan
