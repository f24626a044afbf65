"""A finished run as an ArviZ object: draws, sampler statistics, likelihoods and predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import jax
import numpy as np
import numpyro
import xarray as xr
from numpyro.infer import MCMC

from ppl_bnn._arviz import from_groups
from ppl_bnn.draws import COMPONENTS, NO_CHAINS, Draws, as_draws
from ppl_bnn.function_space import parameter_draws
from ppl_bnn.pointwise import check_observed, pointwise_log_likelihood
from ppl_bnn.replay import Replay

# NumPyro's names and ours -> ArviZ's.
STATISTICS = {
    "accept_prob": "acceptance_rate",
    "num_steps": "n_steps",
    "trajectory_length": "int_time",
    "is_accepted": "accepted",
    "adapt_state.step_size": "step_size",
}


def to_arviz(
    mcmc: Any,
    x: Any = None,
    y: Any = None,
    *,
    x_test: Any = None,
    log_likelihood: bool = False,
    model: Callable | None = None,
    site: str | None = None,
    dims: Mapping[str, list[str]] | None = None,
    group_by_chain: bool = False,
    batch_size: int = 16,
    points_batch_size: int | None = 1024,
    model_kwargs: dict[str, Any] | None = None,
) -> Any:
    """All that is known of a run as one ArviZ object, to be saved by its `to_netcdf`.

    Parameters
    ----------
    mcmc
        An `numpyro.infer.MCMC` that has run, or a dictionary of samples.
    x, y
        Inputs and observed values of the fit, needed only for `observed_data` and
        `log_likelihood`.
    x_test
        Inputs at which to store predictions.
    log_likelihood
        Whether to store the log-likelihood of each point under each draw (for LOO); its size is
        draws times points.
    dims
        Site name -> names of the dimensions of its draws after chain and draw. By default the
        last two axes of a ``kernel`` end in ``_in`` and ``_out`` (of a ``weight``, as in
        Equinox, in ``_out`` and ``_in``) and that of a ``bias`` in ``_out``.
    model, site, group_by_chain, batch_size, points_batch_size, model_kwargs
        As for `function_space`.

    Returns
    -------
    InferenceData or DataTree
        On ArviZ 0.23 or 1.x, with groups

        - ``posterior``: the draws; NetCDF forbids "/" in names, so that ``net/layers.0.kernel``
          becomes ``net.layers.0.kernel``;
        - ``sample_stats``: what the sampler recorded, under ArviZ's names (``acceptance_rate``,
          ``diverging``, ``energy``, ``lp``, ``n_steps``, ``step_size``, ``int_time``), and our
          own ``metropolis`` (this draw passed a Metropolis test), ``accepted``, ``failed_at``;
        - ``log_likelihood``, ``observed_data`` where asked for and given;
        - ``predictions``: `function_space` at `x_test`.

    Raises
    ------
    ValueError
        If `log_likelihood` is asked for without `x` and `y`, or as `function_space`.
    """
    if log_likelihood and (x is None or y is None):
        raise ValueError("log_likelihood=True needs the inputs `x` and the observed values `y`")
    draws = as_draws(mcmc, model, group_by_chain=group_by_chain)

    def replay(inputs: Any) -> Replay:
        return Replay(
            draws,
            inputs,
            site=site,
            batch_size=batch_size,
            points_batch_size=points_batch_size,
            model_kwargs=model_kwargs,
        )

    groups = {"posterior": _posterior(draws, dims or {})}
    if draws.stats:
        groups["sample_stats"] = _sample_stats(draws)
    if log_likelihood or y is not None:
        fit = replay(x) if x is not None else None
        name = netcdf_name(fit.site) if fit is not None else site or "y"
        values = np.asarray(y)
        if fit is not None:
            check_observed(fit, values)
        data_dims = ["point", *(f"{name}_dim_{i}" for i in range(1, values.ndim))][: values.ndim]
        groups["observed_data"] = xr.Dataset({name: (data_dims, values)})
        if log_likelihood:
            assert fit is not None
            pointwise = pointwise_log_likelihood(fit, y)
            pointwise = pointwise.reshape(draws.num_chains, draws.num_draws, -1)
            groups["log_likelihood"] = _dataset(draws, {name: (["point"], pointwise)})
    if x_test is not None:
        groups["predictions"] = parameter_draws(replay(x_test))
    for group in groups.values():
        group.attrs.update(_versions())
    if isinstance(mcmc, MCMC):
        groups["posterior"].attrs.update(_run_settings(mcmc))
    return from_groups(groups)


def netcdf_name(name: str) -> str:
    """A site's name as a NetCDF variable: a slash would open a group."""
    return name.replace("/", ".")


def _posterior(draws: Draws, dims: Mapping[str, list[str]]) -> xr.Dataset:
    samples = draws.whole()
    unknown = set(dims) - set(samples)
    if unknown:
        raise ValueError(
            f"`dims` names sites {sorted(unknown)} that have no draws; draws are there of "
            f"{sorted(samples)}"
        )
    variables = {}
    for site, values in samples.items():
        name = netcdf_name(site)
        if name in variables:
            raise ValueError(f"two sites would both be saved as {name!r}; rename one of them")
        variables[name] = (list(dims.get(site, _weight_dims(name, values.ndim - 2))), values)
    dataset = _dataset(draws, variables)
    for site in samples:
        dataset[netcdf_name(site)].attrs["site"] = site  # for the way back, in `as_draws`
    if not draws.are_chains:
        dataset.attrs[COMPONENTS] = NO_CHAINS
    return dataset


def _weight_dims(name: str, ndim: int) -> list[str]:
    """Default names of the axes of a parameter, by the conventions of Flax and Equinox."""
    leaf = name.rsplit(".", 1)[-1]
    ends = {("kernel", True): ["in", "out"], ("weight", True): ["out", "in"]}.get(
        (leaf, ndim >= 2), ["out"] if leaf == "bias" and ndim == 1 else []
    )
    return [f"{name}_{end}" for end in [*(f"dim_{i}" for i in range(ndim - len(ends))), *ends]]


def _sample_stats(draws: Draws) -> xr.Dataset:
    variables = {}
    for name, values in draws.stats.items():
        if name == "potential_energy":
            name, values = "lp", -values
        name = netcdf_name(STATISTICS.get(name, name))
        variables[name] = ([f"{name}_dim_{i}" for i in range(values.ndim - 2)], values)
    return _dataset(draws, variables)


def _dataset(draws: Draws, variables: dict[str, tuple[list[str], np.ndarray]]) -> xr.Dataset:
    return xr.Dataset(
        {name: (["chain", "draw", *dims], values) for name, (dims, values) in variables.items()},
        coords={"chain": np.arange(draws.num_chains), "draw": np.arange(draws.num_draws)},
    )


def _versions() -> dict[str, str]:
    try:
        own = metadata.version("ppl-bnn")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        own = "unknown"
    return {
        "inference_library": "numpyro",
        "inference_library_version": numpyro.__version__,
        "ppl_bnn_version": own,
        "jax_version": jax.__version__,
    }


def _run_settings(mcmc: MCMC) -> dict[str, Any]:
    """What the run was asked for, in types that NetCDF attributes can have."""
    # Our kernels keep their options in one place, NumPyro's among their private attributes.
    options = getattr(mcmc.sampler, "settings", mcmc.sampler)
    settings = {
        name.lstrip("_"): value
        for name, value in vars(options).items()
        if isinstance(value, bool | int | float | str)
    }
    return {
        "sampler": type(mcmc.sampler).__name__,
        "sampler_settings": json.dumps(settings),
        "num_warmup": mcmc.num_warmup,
        "num_samples": mcmc.num_samples,
        "num_chains": mcmc.num_chains,
        "thinning": mcmc.thinning,
        "chain_method": str(mcmc.chain_method),
    }
