"""The observed site's own distribution at new inputs, one for each draw, in bounded memory.

A model is run with its latent sites set to a draw and nothing observed; what it then says about
the observed site is a NumPyro distribution. Predictions, function-space diagnostics and pointwise
log-likelihoods are functions of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers

from ppl_bnn import inputs
from ppl_bnn.draws import Draws
from ppl_bnn.input_checks import check_inputs


class Replay:
    """A model's observed site at the inputs `x`, under every draw.

    Parameters
    ----------
    draws
        The draws; their `model` is run as ``model(x)``, or ``model(*x)`` for a tuple.
    x
        Arrays, or a pytree of arrays, whose leading axis is the data point.
    site
        The observed site; needed only if the model has more than one.
    batch_size
        Number of draws evaluated at once.
    points_batch_size
        Number of rows of `x` evaluated at once; None for all of them.
    model_kwargs
        Further keyword arguments of the model, handed over whole. Numbers, strings and flags are
        those of the fit where they are not given.

    Attributes
    ----------
    site
        Name of the observed site.
    num_points
        Number of rows of `x`.
    point_axis
        The axis of the site's value that runs over the rows.
    distribution
        The site's distribution under the first draw at the first row, to learn its kind from.
    """

    def __init__(
        self,
        draws: Draws,
        x: Any,
        *,
        site: str | None = None,
        batch_size: int = 16,
        points_batch_size: int | None = 1024,
        model_kwargs: dict[str, Any] | None = None,
    ):
        for name, size in (("batch_size", batch_size), ("points_batch_size", points_batch_size)):
            if size is not None and size < 1:
                raise ValueError(f"`{name}` must be at least 1, got {size}")
        if draws.model is None:
            raise ValueError("the draws come without their model: give it as `model=`")
        self.draws = draws
        self.model = draws.model
        self.args, self.num_points = inputs.rows(x)
        inputs.check_like_fit(self.model, self.args, draws.fitted)
        self.kwargs = inputs.fill_from_fit(self.model, self.args, model_kwargs or {}, draws.fitted)
        inputs.check_signature(self.model, self.args, self.kwargs)

        sites = self._sites()
        _check_plates(sites)
        drawn = draws.flat()
        latent = [name for name, site_ in sites.items() if _is_latent(site_)]
        params = [name for name, site_ in sites.items() if site_["type"] == "param"]
        given = {*latent, *params}
        self.shared = {n: jnp.asarray(v) for n, v in draws.shared.items() if n in given}
        self.site = _observed_site(sites, latent, {*drawn, *self.shared}, site)
        # Deterministic sites were recorded at the inputs of the fit and are computed afresh.
        self.samples = {name: value for name, value in drawn.items() if name in given}
        self.num_samples = draws.num_chains * draws.num_draws
        self.batch_size = min(batch_size, self.num_samples)
        self.points_batch_size = min(points_batch_size or self.num_points, self.num_points)
        self.point_axis = self._find_point_axis()
        self.distribution = self._first(1)
        checked = check_inputs(self.model, self.args, self.kwargs)
        inputs.check_finite(self.args, but_for=checked)
        self._check_determined(sites, latent)
        self._check_rows_independent()

    def chunks(self, fn: Callable, *row_args: Any) -> Iterator[tuple[slice, Any]]:
        """Evaluate ``fn(distribution, *row_args)`` for all draws, one chunk of rows at a time.

        Parameters
        ----------
        fn
            Gets the distribution of one draw at `points_batch_size` rows and returns a pytree.
        row_args
            Further arrays with one row for each row of `x`.

        Yields
        ------
        rows, values
            The rows of the chunk, and what `fn` returned, as NumPy arrays with all draws stacked
            along a leading axis. The last chunk is padded to full size with copies of its last
            row; the padding comes after the chunk's own rows.
        """
        row_args = tuple(np.asarray(value) for value in row_args)
        evaluate = jax.jit(
            jax.vmap(
                lambda sample, shared, args, rows: fn(
                    self._distribution(sample | shared, args), *rows
                ),
                in_axes=(0, None, None, None),
            )
        )
        for start in range(0, self.num_points, self.points_batch_size):
            stop = min(start + self.points_batch_size, self.num_points)
            index = np.minimum(np.arange(start, start + self.points_batch_size), stop - 1)
            args, rows = jax.tree.map(lambda leaf, i=index: leaf[i], (self.args, row_args))
            yield slice(start, stop), self._all_draws(evaluate, args, rows)

    def point_axes(self, fn: Callable) -> Any:
        """The axis that runs over the rows in each array that `fn` returns, -1 if there is none.

        Found by comparing shapes for two and three rows, so that an axis that happens to be as
        long as `x` is not mistaken for it.
        """

        def shapes(num_rows: int) -> Any:
            return self._abstractly(
                lambda sample, args: fn(self._distribution(sample, args)),
                num_rows,
                self._first_draw(),
            )

        return jax.tree.map(
            lambda two, three: _growing_axis(self.site, two.shape, three.shape),
            shapes(2),
            shapes(3),
        )

    def value_shape(self) -> tuple[int, ...]:
        """Shape of the site's value at `x`, rows first."""
        shape = list(self.distribution.batch_shape + self.distribution.event_shape)
        del shape[self.point_axis]
        return (self.num_points, *shape)

    def _all_draws(self, evaluate: Callable, args: Any, rows: Any) -> Any:
        buffers: list[np.ndarray] = []
        structure = None
        for start in range(0, self.num_samples, self.batch_size):
            stop = min(start + self.batch_size, self.num_samples)
            index = slice(stop - self.batch_size, stop)
            samples = {name: v[index] for name, v in self.samples.items()}
            values = evaluate(samples, self.shared, args, rows)
            leaves, structure = jax.tree.flatten(values)
            if not buffers:
                buffers = [np.empty((self.num_samples, *v.shape[1:]), v.dtype) for v in leaves]
            for buffer, leaf in zip(buffers, leaves, strict=True):
                buffer[index] = leaf
        assert structure is not None
        return jax.tree.unflatten(structure, buffers)

    def _trace(self, sample: dict[str, Any], args: tuple, seed: int = 0) -> dict[str, Any]:
        model = handlers.substitute(handlers.seed(self.model, rng_seed=seed), data=sample)
        return handlers.trace(model).get_trace(*args, **self.kwargs)

    def _distribution(self, sample: dict[str, Any], args: tuple, seed: int = 0) -> Any:
        return self._trace(sample, args, seed)[self.site]["fn"]

    def _first_draw(self) -> dict[str, Any]:
        return {name: value[0] for name, value in self.samples.items()} | self.shared

    def _abstractly(self, run: Callable, num_rows: int, sample: dict[str, Any]) -> Any:
        """Shapes of ``run(sample, args)`` at `num_rows` rows, with the model's errors explained."""
        args = jax.tree.map(
            lambda v: jax.ShapeDtypeStruct((num_rows, *v.shape[1:]), jnp.result_type(v)), self.args
        )
        try:
            return jax.eval_shape(run, sample, args)
        except (TypeError, ValueError) as error:
            shapes = ", ".join(str(v.shape) for v in jax.tree.leaves(self.args))
            raise ValueError(
                f"the model does not run on the draws at `x` of shape {shapes}. It must take its "
                "number of rows from `x`, and `x` must have the columns of the fit. "
                f"The model's own error: {type(error).__name__}: {error}"
            ) from error

    def _sites(self) -> dict[str, dict[str, Any]]:
        """Type, fixed arguments and role of every site of the model, nothing being computed."""
        sites: dict[str, dict[str, Any]] = {}

        def run(sample: dict[str, Any], args: tuple) -> None:
            for name, site in self._trace(sample, args).items():
                sites[name] = {
                    "type": site["type"],
                    "is_observed": site.get("is_observed", False),
                    "infer": site.get("infer") or {},
                    "args": site["args"] if site["type"] == "plate" else (),
                }

        self._abstractly(run, self.num_points, {})
        return sites

    def _find_point_axis(self) -> int:
        axis = self.point_axes(lambda d: jnp.zeros(d.batch_shape + d.event_shape))
        if axis < 0:
            raise ValueError(
                f"the value of site {self.site!r} has the same shape for every number of rows of "
                "`x`; expected one value (or vector) for each row"
            )
        return axis

    def _check_determined(self, sites: dict[str, dict[str, Any]], latent: list[str]) -> None:
        given = {*self.samples, *self.shared, self.site}
        random = [name for name in latent if name not in given]
        random += [name for name, site in sites.items() if site["type"] == "prng_key"]
        if not random:
            return
        first, second = (jax.tree.leaves(self._first(1, seed)) for seed in (0, 1))
        if not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)):
            raise ValueError(
                f"the distribution of site {self.site!r} depends on random sites that `draws` do "
                f"not hold: {random}. Give draws of every latent site, and keep masks such as "
                "dropout's out of the model"
            )

    def _check_rows_independent(self) -> None:
        size = self.points_batch_size
        if size == self.num_points:
            return
        axes = self.point_axes(jax.tree.leaves)
        alone, together = (jax.tree.leaves(self._first(n)) for n in (size, 2 * size))
        for axis, a, b in zip(axes, alone, together, strict=True):
            a, b = np.asarray(a), np.asarray(b)
            b = b if axis < 0 else np.take(b, np.arange(size), axis)
            # Sums over another number of rows are rounded otherwise, by far less than this.
            if not np.allclose(a, b, rtol=0, atol=1e-3 * np.abs(b).max(), equal_nan=True):
                raise ValueError(
                    f"the distribution of site {self.site!r} at one row of `x` changes with the "
                    "other rows (does the model standardise by `x.mean()`?): such a model cannot "
                    "be evaluated in chunks of rows; standardise before the model, or give "
                    "points_batch_size=None"
                )

    def _first(self, num_rows: int, seed: int = 0) -> Any:
        """The distribution under the first draw at the first rows, computed at once."""
        sample = self._first_draw()
        args = jax.tree.map(lambda v: jnp.asarray(v[:num_rows]), self.args)
        # A draw with NaN is the caller's to count, as in compiled code, which cannot raise.
        with numpyro.validation_enabled(False):
            return self._distribution(sample, args, seed)


def _is_latent(site: dict[str, Any]) -> bool:
    return (
        site["type"] == "sample"
        and not site["is_observed"]
        and not site["infer"].get("is_auxiliary", False)
    )


def _observed_site(
    sites: dict[str, dict[str, Any]], latent: list[str], drawn: set[str], site: str | None
) -> str:
    free = [name for name in latent if name not in drawn]
    if drawn.isdisjoint(latent):
        raise ValueError(
            f"`draws` hold none of the model's latent sites: they hold {sorted(drawn)}, the model "
            f"has {latent}; give the draws of this model"
        )
    if site is not None:
        if site in drawn or sites.get(site, {}).get("type") != "sample":
            raise ValueError(
                f"`site` {site!r} is no observed site of the model; it has {free or 'none'}"
            )
        return site
    if not free:
        raise ValueError(
            "the model, run on `x` alone, leaves no site unobserved, so there is nothing to "
            "predict: write `def model(x, y=None)` and `numpyro.sample(name, ..., obs=y)`"
        )
    if len(free) > 1:
        raise ValueError(
            f"several sites are neither given by the draws nor observed: {free}; choose the one "
            "to predict by `site=`"
        )
    return free[0]


def _check_plates(sites: dict[str, dict[str, Any]]) -> None:
    for name, site in sites.items():
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise ValueError(
                f"plate {name!r} draws a random subset ({site['args'][1]} of {site['args'][0]}); "
                "predictions are made at every row of `x`: make the model's `subsample_size` an "
                "argument and give None for it by `model_kwargs`"
            )


def _growing_axis(site: str, two: tuple[int, ...], three: tuple[int, ...]) -> int:
    axes = [i for i, (m, n) in enumerate(zip(two, three, strict=True)) if m != n]
    if not axes:
        return -1
    if len(axes) > 1 or (two[axes[0]], three[axes[0]]) != (2, 3):
        raise ValueError(
            f"for two and three rows of `x` the distribution of site {site!r} has arrays of "
            f"shapes {two} and {three}; expected one axis with one entry for each row"
        )
    return axes[0]
