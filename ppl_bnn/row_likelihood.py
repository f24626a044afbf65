"""The log likelihood of all rows: chunk by chunk, device by device, value and gradient at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, PartitionSpec
from numpyro import handlers

from ppl_bnn.density import block_sums, site_log_prob
from ppl_bnn.mesh import DATA, size
from ppl_bnn.rows import Rows, is_array


def row_log_likelihood(
    model: Callable, rows: Rows, *, mesh: Mesh | None = None, chunk_size: int | None = None
) -> Callable[[dict, Sequence[Any]], tuple[jax.Array, jax.Array]]:
    """Log likelihood of all rows as a function of the latent values.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    rows : Rows
        The rows of its arguments, as `find_rows` gives them.
    mesh : jax.sharding.Mesh, optional
        Rows are divided over its ``"data"`` axis.
    chunk_size : int, optional
        Rows evaluated at once on a device; memory grows with it and not with the number of rows.

    Returns
    -------
    callable
        ``(values, leaves) -> (total, terms)``: the constrained values of latent sites by name and
        the leaves of the model's arguments (as they are, or padded by `Data`) to log likelihood,
        shape (), and its partial sums, shape (terms,), which carry no gradient.

    Notes
    -----
    The derivative rule computes value and gradient together, chunk by chunk, so that chunking
    costs no second forward pass, and sums both over the devices in one all-reduce.
    """
    num_devices = size(mesh, DATA)

    def terms_of(values, row_leaves, other_leaves, counted):
        """Partial log-likelihood sums of a few rows; only those `counted` contribute."""
        args, kwargs = rows.join(row_leaves, other_leaves)
        with handlers.block():
            pinned = handlers.substitute(model, data=values)
            trace = handlers.trace(pinned).get_trace(*args, **kwargs)
        terms = []
        for name, axis in rows.sites.items():
            if axis is not None:
                site = trace[name]
                log_prob = site_log_prob(site)
                right = jnp.ndim(log_prob) - len(site["fn"].batch_shape)  # unwrapped event axes
                at = jnp.ndim(log_prob) + axis - right
                shape = [-1 if i == at else 1 for i in range(jnp.ndim(log_prob))]
                terms.append(block_sums(jnp.where(counted.reshape(shape), log_prob, 0.0)))
        return jnp.concatenate(terms)

    def on_device(with_gradient, values, row_leaves, other_leaves):
        device = jax.lax.axis_index(DATA) if mesh is not None else 0
        num_local = -(-rows.num_rows // num_devices)
        base = device * num_local
        if row_leaves[0].shape[0] != num_local:  # whole on every device: each takes its share
            base = jnp.minimum(base, rows.num_rows - num_local)
            row_leaves = [
                jax.lax.dynamic_slice_in_dim(leaf, base, num_local) for leaf in row_leaves
            ]
        chunk = min(chunk_size or num_local, num_local)

        def evaluate(start):
            first = jnp.minimum(start, num_local - chunk)  # the last chunk overlaps, if need be
            taken = [
                leaf if chunk == num_local else jax.lax.dynamic_slice_in_dim(leaf, first, chunk)
                for leaf in row_leaves
            ]
            local = first + jnp.arange(chunk)
            place = base + local
            counted = (local >= start) & (place >= device * num_local) & (place < rows.num_rows)

            def total(values):
                terms = terms_of(values, taken, other_leaves, counted)
                return jnp.sum(terms), terms

            if not with_gradient:
                return jax.tree.map(jnp.zeros_like, values), total(values)[1]
            return jax.grad(total, has_aux=True)(values)

        if chunk == num_local:
            gradient, terms = evaluate(0)
        else:

            def body(gradient, start):
                more, terms = evaluate(start)
                return jax.tree.map(jnp.add, gradient, more), terms

            zeros = jax.tree.map(jnp.zeros_like, values)
            gradient, terms = jax.lax.scan(body, zeros, jnp.arange(0, num_local, chunk))
            terms = terms.ravel()
        if mesh is None:
            return gradient, terms
        joined, split = ravel_pytree((gradient if with_gradient else {}, terms))
        summed = split(jax.lax.psum(joined, DATA))
        return (summed[0] if with_gradient else gradient), summed[1]

    def evaluate(with_gradient, values, leaves):
        row_leaves, other_leaves = rows.split(leaves)
        fixed = [leaf if is_array(leaf) else None for leaf in other_leaves]
        run = functools.partial(on_device, with_gradient)
        if mesh is None:
            return run(values, row_leaves, other_leaves)

        # rows that do not divide among devices cannot lie apart, unless `Data` has padded them
        divisible = row_leaves[0].shape[0] % num_devices == 0
        row_spec = PartitionSpec(DATA) if divisible else PartitionSpec()

        def local(values, row_leaves, fixed):
            filled = [b if a is None else a for a, b in zip(fixed, other_leaves, strict=True)]
            return run(values, row_leaves, filled)

        return jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(PartitionSpec(), row_spec, PartitionSpec()),
            out_specs=PartitionSpec(),
            check_vma=False,  # the sum over devices is ours, once, and not one for each value
        )(values, row_leaves, fixed)

    def log_likelihood(values, leaves):
        values = jax.tree.map(jnp.asarray, values)
        arrays = [leaf if is_array(leaf) else None for leaf in leaves]

        def fill(arrays):
            return [b if a is None else a for a, b in zip(arrays, leaves, strict=True)]

        @jax.custom_vjp
        def term(values, arrays):
            _, terms = evaluate(False, values, fill(arrays))
            return jnp.sum(terms), terms

        def forward(values, arrays):
            gradient, terms = evaluate(True, values, fill(arrays))
            return (jnp.sum(terms), terms), gradient

        def backward(gradient, cotangent):
            return jax.tree.map(lambda g: cotangent[0] * g, gradient), None

        term.defvjp(forward, backward)
        return term(values, arrays)

    return log_likelihood


def check_chunk_size(chunk_size: int | None) -> None:
    """Refuse chunk sizes that are not positive integers."""
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(
            f"`chunk_size` must be a positive number of rows or None, got {chunk_size!r}."
        )


def check_mesh_fits(mesh: Mesh | None, num_rows: int) -> None:
    """Refuse meshes some of whose devices would hold padding alone."""
    if size(mesh, DATA) > num_rows:
        raise ValueError(
            f"`mesh` divides rows over {size(mesh, DATA)} devices, but there are {num_rows} "
            "rows. Make a "
            f"smaller one: `ppl_bnn.mesh(data={num_rows})` at most."
        )
