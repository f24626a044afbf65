"""Draws of a model's predictions instead of its weights, as an ArviZ object.

The weights of a network cannot be compared between chains: units permute and signs flip without
changing the function. Its predictions can, so R-hat, effective sample size and Monte Carlo error
are those of functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from ppl_bnn._arviz import from_groups
from ppl_bnn.draws import COMPONENTS, NO_CHAINS, as_draws
from ppl_bnn.parameters import LOG_PROBS, parameters
from ppl_bnn.replay import Replay


def function_space(
    draws: Any,
    x: Any,
    *,
    model: Callable | None = None,
    site: str | None = None,
    group_by_chain: bool = False,
    batch_size: int = 16,
    points_batch_size: int | None = 1024,
    model_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Draws of the parameters of the observed site's distribution at the inputs `x`.

    Parameters
    ----------
    draws
        An `numpyro.infer.MCMC` that has run, what `fit` returned (of which there are 25 draws of
        each component, or as many as ``result.draws(n)`` makes), a list of fits, which is an
        ensemble, or a dictionary of samples as `MCMC.get_samples` returns it. A rejected proposal
        counts its chain's position again.
    x
        Inputs, shape (point, ...); a tuple for a model of several inputs. The model is run as
        ``model(x)`` (or ``model(*x)``) with the draws in place of its latent sites.
    model
        The NumPyro model; by default the one that the MCMC ran.
    site
        The observed site; needed only if the model has several.
    group_by_chain
        For a dictionary: whether its arrays start with (chain, draw).
    batch_size, points_batch_size
        Draws and rows of `x` evaluated at once; memory for intermediate values is bounded by
        their product. None for all rows, which a model whose rows interact needs.
    model_kwargs
        Further keyword arguments of the model.

    Returns
    -------
    InferenceData or DataTree
        On ArviZ 0.23 or 1.x. Its group `posterior` holds variables of shape
        (chain, draw, point[, output or class]): ``mean`` and ``log_scale`` for a normal
        distribution, ``log_probs`` for class labels, and in general the parameters that
        `ppl_bnn.parameters.parameters` names. A parameter that is the same for every row (a
        homoscedastic noise scale) has no point dimension; axes of length one are left out.
        Components of a `ppl_bnn.Fit`, or members of an ensemble, take the place of chains; the
        attribute `chain` says so, and `ppl_bnn.rhat` refuses them.
        The attribute `num_constant` counts, for each variable, the quantities that never change
        over all draws: ArviZ gives NaN as their R-hat, `ppl_bnn.rhat` leaves them out.

    Raises
    ------
    ValueError
        Before the first evaluation: if `x` does not fit the model or has NaNs, if no site or
        several are left to predict, or if the rows of `x` influence each other across chunks.

    Examples
    --------
    >>> functions = function_space(mcmc, x_test)  # doctest: +SKIP
    >>> az.summary(functions, var_names=["mean"])  # doctest: +SKIP
    """
    replay = Replay(
        as_draws(draws, model, group_by_chain=group_by_chain),
        x,
        site=site,
        batch_size=batch_size,
        points_batch_size=points_batch_size,
        model_kwargs=model_kwargs,
    )
    return from_groups({"posterior": parameter_draws(replay)})


def parameter_draws(replay: Replay) -> xr.Dataset:
    """The parameters of a replayed site, all draws and points, as a dataset."""
    axes = replay.point_axes(parameters)

    def point_first(distribution: Any) -> dict[str, Any]:
        return {
            name: jnp.moveaxis(value, axes[name], 0) if axes[name] >= 0 else value
            for name, value in parameters(distribution).items()
        }

    values: dict[str, np.ndarray] = {}
    for rows, chunk in replay.chunks(point_first):
        for name, value in chunk.items():
            if axes[name] < 0:
                values.setdefault(name, value)
                continue
            if name not in values:
                shape = (len(value), replay.num_points, *value.shape[2:])
                values[name] = np.empty(shape, value.dtype)
            values[name][:, rows] = value[:, : rows.stop - rows.start]

    num_chains, num_draws = replay.draws.num_chains, replay.draws.num_draws
    dataset = xr.Dataset(
        coords={
            "chain": np.arange(num_chains),
            "draw": np.arange(num_draws),
            "point": np.arange(replay.num_points),
        }
    )
    num_constant = {}
    for name, value in values.items():
        grouped = value.reshape(num_chains, num_draws, *value.shape[1:])
        num_constant[name] = int(np.sum(np.all(grouped == grouped[:1, :1], axis=(0, 1))))
        sizes = {str(dim): length for dim, length in dataset.sizes.items()}
        dims, kept = _dims(name, grouped.shape[2:], axes[name] >= 0, sizes)
        dataset[name] = (("chain", "draw", *dims), grouped.reshape(num_chains, num_draws, *kept))
    dataset.attrs = {
        "site": replay.site,
        # JSON, because NetCDF attributes cannot be nested.
        "num_constant": json.dumps(num_constant),
        "inference_library": "numpyro",
    }
    if not replay.draws.are_chains:
        dataset.attrs[COMPONENTS] = NO_CHAINS
    return dataset


def _dims(
    name: str, shape: tuple[int, ...], has_points: bool, taken: dict[str, int]
) -> tuple[list[str], list[int]]:
    """Names and lengths of a variable's dimensions, axes of length one left out."""
    dims, kept = (["point"], [shape[0]]) if has_points else ([], [])
    others = shape[1:] if has_points else shape
    if not has_points:
        # Broadcasting has padded such a parameter on the left, where the points would be.
        while others and others[0] == 1:
            others = others[1:]
    for i, length in enumerate(others):
        dim = f"output_{i}" if i else "output"
        if name == LOG_PROBS and i == len(others) - 1:
            dim = "class"
        elif length == 1:
            continue
        if taken.get(dim, length) != length:
            dim = f"{name}_{dim}"
        dims.append(dim)
        kept.append(length)
    return dims, kept
