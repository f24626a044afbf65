"""A NumPyro model on given data, as a sampler sees it: positions in, log density out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.sharding import Mesh
from numpyro import handlers
from numpyro.distributions import biject_to

from ppl_bnn.checks import (
    check_arguments,
    check_finite,
    check_observations,
    explain_failure,
    refuse_latents,
    refuse_no_observations,
)
from ppl_bnn.data import Data
from ppl_bnn.density import RefuseRandomness, density_terms, run_at
from ppl_bnn.identity import identity
from ppl_bnn.input_checks import check_inputs
from ppl_bnn.row_checks import check_rows
from ppl_bnn.row_likelihood import check_mesh_fits, row_log_likelihood
from ppl_bnn.rows import abstract_trace, concretely, find_rows, refuse_subsampling

Position = dict[str, jax.Array]


class Target:
    """The posterior of a model on data that are checked and placed on their devices.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    args, kwargs
        What it is called with.
    mesh, chunk_size
        As in `ppl_bnn.full_batch`. Where both are None the model is evaluated as it stands, and
        need not be a sum over rows.
    temperature : float
        Prior and likelihood are raised to the power 1 / temperature, in constrained space.
    by_rows : bool
        Whether rows are needed even without `mesh` and `chunk_size`, for batches of them. With a
        mesh all devices then hold all rows.

    Attributes
    ----------
    names : list of str
        Latent sites, in the order in which the model samples them.
    probe : tuple
        Arguments that suffice to ask the model about its latent sites: all, or, with `mesh` or
        `chunk_size`, two of their rows.
    sites : dict
        What `abstract_trace` tells of the model's sites.
    data : Data
        The placed arguments.
    fingerprint : jax.Array
        Shape (); by which a state that belongs to another posterior is known.
    constrain : callable
        From an unconstrained position and `data.read()` to the values of the latent sites, and of
        the deterministic ones where there are any.
    starts : dict
        Where a kernel keeps what it has compiled to start chains on this target.
    """

    def __init__(
        self,
        model: Callable,
        args: tuple,
        kwargs: dict,
        *,
        mesh: Mesh | None = None,
        chunk_size: int | None = None,
        temperature: float = 1.0,
        by_rows: bool = False,
    ):
        self.mesh, self.temperature = mesh, temperature
        checked_trace(model, args, kwargs)
        self.rows, self.probe = None, (args, kwargs)
        if by_rows or mesh is not None or chunk_size is not None:
            self.rows = find_rows(model, args, kwargs)
        if self.rows is not None:
            check_mesh_fits(mesh, self.rows.num_rows)
            leaves = jax.tree.leaves((args, kwargs))
            check_rows(model, leaves, self.rows)
            self.probe = self.rows.take(leaves, slice(0, 2))
        self.sites = abstract_trace(model, *self.probe)
        self.names = [
            name
            for name, site in self.sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        ]
        if not self.names:
            raise ValueError("the model has no latent sample site: there is nothing to infer.")
        refuse_latents(self.sites, self.names)
        self.model = _with_constants(model, self.sites)
        self.has_deterministic = any(s["type"] == "deterministic" for s in self.sites.values())
        self.data = Data(args, kwargs, None if by_rows else self.rows, mesh)
        # the same for the same model and data in every process, and else most likely not
        told = f"{identity(model)} at {temperature}"
        self.fingerprint = self.data.fingerprint ^ jnp.uint32(zlib.crc32(told.encode()))
        self.constrain = jax.jit(self._constrain)
        self.starts: dict[Any, Any] = {}
        self._row_log_likelihood = None
        if self.rows is not None:
            self._row_log_likelihood = row_log_likelihood(
                self.model, self.rows, mesh=mesh, chunk_size=chunk_size
            )

    def log_density(self, arrays: Sequence[jax.Array]) -> Callable[[Position], jax.Array]:
        """Log density of the position given the placed data, as terms to be summed.

        Parameters
        ----------
        arrays : sequence of arrays
            What `data.read()` gives.

        Returns
        -------
        callable
            From an unconstrained position to an array of shape (terms,). The sum, divided by the
            temperature, is the log density up to a constant.
        """
        rows, row_log_likelihood = self.rows, self._row_log_likelihood
        leaves = self.data.fill(arrays)

        def plain(position: Position) -> jax.Array:
            args, kwargs = jax.tree.unflatten(self.data.treedef, leaves)
            return density_terms(*run_at(self.model, position, args, kwargs), self.temperature)

        if rows is None or row_log_likelihood is None:
            return plain

        def by_rows(position: Position) -> jax.Array:
            args, kwargs = rows.take(leaves, slice(0, 2))
            trace, log_det = run_at(self.model, position, args, kwargs)
            values = {name: trace[name]["value"] for name in self.names}
            total, terms = row_log_likelihood(values, leaves)
            # the terms carry no gradient; this zero does
            carrier = total - jax.lax.stop_gradient(total)
            others = density_terms(trace, log_det, self.temperature, skip=rows.seen_by)
            return jnp.concatenate([others, carrier[None], jax.lax.stop_gradient(terms)])

        return by_rows

    def probe_terms(self, position: Position) -> jax.Array:
        """Terms of the log density of the rows in `probe`, for a look at the program."""
        return density_terms(*run_at(self.model, position, *self.probe), self.temperature)

    def _constrain(self, position: Position, arrays: Sequence[jax.Array]) -> Position:
        if self.rows is not None and not self.has_deterministic:
            args, kwargs = self.rows.take(self.data.fill(arrays), slice(0, 2))
        else:
            args, kwargs = self._arguments(arrays)
        trace, _ = run_at(self.model, position, args, kwargs)
        return {
            name: site["value"]
            for name, site in trace.items()
            if name in self.names or site["type"] == "deterministic"
        }

    def check_values(self, values: Mapping[str, Any]) -> None:
        """Refuse initial values of sites that are unknown or have another shape.

        Raises
        ------
        ValueError
            Names the sites.
        """
        unknown = sorted(set(values) - set(self.names))
        if unknown:
            raise ValueError(
                f"initial values were given for {unknown}, but the latent sites are {self.names}."
            )
        for name, value in values.items():
            expected, got = self.sites[name]["shape"], jnp.shape(value)
            if expected != got:
                raise ValueError(
                    f"the initial value of {name!r} has shape {got}, but the site has {expected}."
                )
            support = self.sites[name]["fn"].support
            if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((support, value))):
                continue
            with concretely():
                inside = bool(np.all(support(np.asarray(value))))
            if not inside:
                raise ValueError(f"the initial value of {name!r}, {value}, is outside {support}.")

    def unconstrain(self, values: dict[str, Any]) -> Position:
        """Unconstrained position at which the latent sites have the given values."""
        # supports may depend on other sites, so each is read off a run at the given values
        with handlers.block():
            pinned = handlers.substitute(self.model, data=values)
            trace = handlers.trace(pinned).get_trace(*self.probe[0], **self.probe[1])
        return {
            name: _strong(biject_to(trace[name]["fn"].support).inv(jnp.asarray(values[name])))
            for name in self.names
        }

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of an unconstrained position."""
        sites = {name: self.sites[name] for name in self.names}
        values = {n: jax.ShapeDtypeStruct(s["shape"], s["dtype"]) for n, s in sites.items()}
        return jax.eval_shape(self.unconstrain, values)

    def describe(self, position: Position, arrays: Sequence[jax.Array]) -> str:
        """Which sites make the log density at a position not finite, in words."""
        args, kwargs = self._arguments(arrays)
        with numpyro.validation_enabled(False):
            trace, _ = run_at(self.model, position, args, kwargs)
        lines = []
        for name, site in trace.items():
            if site["type"] == "sample":
                log_prob = np.asarray(site["fn"].log_prob(site["value"]))
                if not np.isfinite(log_prob).all():
                    bad = int((~np.isfinite(log_prob)).sum())
                    lines.append(
                        f"log density of {name!r}: {log_prob.sum()} ({bad} entries not finite)"
                    )
                if not np.isfinite(np.asarray(site["value"])).all():
                    lines.append(f"value of {name!r}: not finite")
        return "; ".join(lines) or "every log density is finite, but its gradient is not"

    def _arguments(self, arrays: Sequence[jax.Array]) -> tuple[tuple, dict]:
        """The model's arguments, all rows and no padding."""
        leaves = self.data.fill(arrays)
        if self.rows is not None:
            pairs = zip(leaves, self.rows.is_row, strict=True)
            leaves = [leaf[: self.rows.num_rows] if row else leaf for leaf, row in pairs]
        return jax.tree.unflatten(self.data.treedef, leaves)


def checked_trace(model: Callable, args: tuple, kwargs: dict) -> dict[str, dict]:
    """What `abstract_trace` gives, once the arguments and what is observed have been checked.

    Raises
    ------
    ValueError
        Names the argument or site, and what is wrong.
    """
    check_arguments(model, args, kwargs)
    try:
        shapes = abstract_trace(model, args, kwargs)
    except Exception as error:
        explained = explain_failure(error, model, args, kwargs)
        if explained is error:
            raise
        raise explained from error
    refuse_subsampling(shapes)
    check_finite(model, args, kwargs, but_for=check_inputs(model, args, kwargs))
    check_observations(model, args, kwargs, shapes)
    refuse_no_observations(model, args, kwargs, shapes)
    return shapes


def _strong(leaf: jax.Array) -> jax.Array:
    """The array with a dtype that does not yield to others', as a loop's carry needs."""
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def _with_constants(model: Callable, trace: dict[str, dict]) -> Callable:
    """The model with `numpyro.param` and `mutable` sites at their values, if these are empty.

    NumPyro's own modules register a place for each parameter, empty once it has a prior. A place
    that is not empty would stay at its initial value through the whole run.
    """
    constants = {
        name: site["value"] for name, site in trace.items() if site["type"] in ("param", "mutable")
    }
    for name, value in constants.items():
        left = jax.tree_util.tree_leaves_with_path(value)
        if left:
            paths = [jax.tree_util.keystr(path) for path, _ in left]
            raise ValueError(
                f"{name!r} is a `numpyro.param` or `numpyro.mutable` site: under MCMC it would "
                "keep its initial "
                f"value, silently (entries {paths[:8]}). Give it a prior (`numpyro.sample`, "
                "`ppl_bnn.random_module`), or make it a plain constant of the model."
            )
    return RefuseRandomness(handlers.substitute(model, data=constants) if constants else model)
