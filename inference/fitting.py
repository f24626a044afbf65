"""Fitting a variational guide: minibatches, optimizer, validation, checkpoints, devices."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoLaplaceApproximation

from ppl_bnn.arguments import check_integer, is_number
from ppl_bnn.identity import identity
from ppl_bnn.inference.fitting_loop import Loop
from ppl_bnn.inference.fitting_result import Fit, Sampler
from ppl_bnn.inference.fitting_score import Score
from ppl_bnn.inference.fitting_step import FitState, Problem, Saved, constants_of
from ppl_bnn.inference.fitting_stream import Arguments, as_stream
from ppl_bnn.inference.rank1_elbo import Rank1ELBO
from ppl_bnn.inference.rank1_guide import AutoRank1, Values
from ppl_bnn.mesh import DATA, check_mesh, size
from ppl_bnn.row_checks import check_rows
from ppl_bnn.row_source import RowSource, are_arrays, as_source, kinds
from ppl_bnn.rows import Rows, find_rows
from ppl_bnn.target import checked_trace

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def fit(
    model: Callable,
    guide: Callable,
    data: Any,
    *,
    num_epochs: int,
    batch_size: int | None = None,
    objective: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    kl_schedule: Callable | float | None = None,
    validation: Any = None,
    num_rows: int | None = None,
    mesh: Mesh | None = None,
    compute_dtype: Any = None,
    checkpoint: Any = None,
    progress_bar: bool = True,
    rng_key: jax.Array | None = None,
    model_kwargs: dict[str, Any] | None = None,
) -> Fit:
    """Fit a variational guide to data, minibatch by minibatch.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments, as for
        `ppl_bnn.full_batch`; not a `mini_batch` one.
    guide : callable
        `ppl_bnn.AutoRank1`, an automatic guide of NumPyro's, or one written by hand.
    data : tuple, dict, RowSource or iterable
        The model's arguments: arrays with a row for each datum, by position or by name, or a
        `ppl_bnn.RowSource` of them. Each epoch goes through all rows in a new order. Or an iterable
        of batches, each such a tuple or dictionary, which is passed over once an epoch; then give
        `num_rows`, the number of rows in all.
    num_epochs : int
        Passes over the data.
    batch_size : int, optional
        Rows of a step, for all but iterables. With `Rank1ELBO`'s "tiled" assignment the network
        sees each of them once for each component.
    objective : ELBO, optional
        `Rank1ELBO()` by default for an `AutoRank1`, NumPyro's `TraceMeanField_ELBO()` else. The
        likelihood of a batch is scaled by N / B.
    optimizer : optax.GradientTransformation, optional
        Adam with step size 0.001 by default. It sees the gradient of the objective divided by the
        number of all rows, as usual for networks, in the guide's unconstrained parameters.
    kl_schedule : callable or float, optional
        The weight of the divergence of latent sites from their priors, or from the number of steps
        taken to this weight, as any optax schedule: ``optax.linear_schedule(0.0, 1.0, 1000)``
        rises to the evidence lower bound. Priors of sites that are points always count in full.
    validation : tuple, dict or RowSource, optional
        Arguments as in `data` to measure the log predictive density on after each epoch.
    mesh : jax.sharding.Mesh, optional
        The rows of each batch are divided over its ``"data"`` axis; `ppl_bnn.mesh` makes one.
    compute_dtype : dtype, optional
        In which networks compute, ``jnp.bfloat16`` say; parameters and likelihoods stay float32.
    checkpoint : path, optional
        A folder in which the state is kept at the end of an epoch, at most once a minute, and
        whenever the fit ends. The same call goes on from there, also with more epochs; it takes the
        same steps as if it had not been stopped.
    progress_bar : bool
        Whether to show one, with loss and validation.
    rng_key : jax.Array, optional
        ``jax.random.key(0)`` by default.
    model_kwargs : dict, optional
        Further keyword arguments of the model, handed over whole.

    Returns
    -------
    Fit
        For `predict` and `function_space`. Where a step would make the loss or a parameter
        something that is not finite, the fit stops there, keeps what it has and warns, with the
        step and the sites. Ctrl-C too ends it with what there is.

    Raises
    ------
    ValueError
        Before the first step: if an argument is none of the above, the data are not finite or do
        not fit the model, the model's likelihood is no product over rows, or the objective is not
        finite at the start.
    """
    rng_key = jax.random.key(0) if rng_key is None else rng_key
    key_init, key_order, key_steps, key_draws = jax.random.split(rng_key, 4)
    check_integer("num_epochs", num_epochs, 1)
    check_mesh(mesh)
    _check_parts(guide, objective, optimizer)
    stream = as_stream(data, batch_size, num_rows, key_order)
    weight = _kl_schedule(kl_schedule)
    names = [jnp.dtype(kind).name for kind in DTYPES]
    if compute_dtype is not None and getattr(compute_dtype, "__name__", compute_dtype) not in names:
        raise ValueError(f"`compute_dtype` must be one of {names}, got {compute_dtype!r}.")
    others = model_kwargs or {}

    first = stream.first[0], stream.first[1] | others
    sites = checked_trace(model, *first)
    rows = _find_rows(model, stream.first, others)
    assert rows is not None  # something is observed, says `checked_trace`
    check_rows(model, jax.tree.leaves(first), rows)
    score = None if validation is None else _score(model, validation, others)
    devices = size(mesh, DATA)
    if batch_size is not None and batch_size % devices:
        raise ValueError(
            f"`batch_size` is {batch_size}, which does not divide among the {devices} devices of "
            f"`mesh`: take a multiple of {devices}."
        )

    probe = rows.take(jax.tree.leaves(first), slice(0, batch_size or rows.num_rows))
    if objective is None:
        objective = Rank1ELBO() if isinstance(guide, AutoRank1) else TraceMeanField_ELBO()
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    svi = SVI(model, guide, optax.identity(), objective)
    try:
        svi_state = svi.init(key_init, *probe[0], **probe[1])
    except (TypeError, ValueError, KeyError) as error:
        if getattr(guide, "model", model) is not model:
            error.add_note("`guide` was made for another function than `model`.")
        raise
    params = svi.optim.get_params(svi_state.optim_state)
    constrain = jax.jit(svi.constrain_fn)
    start = constrain(params)
    sampler = Sampler(guide, start, probe)
    _check_guide(sampler, sites)
    problem = Problem(
        model=model,
        guide=guide,
        objective=objective,
        optimizer=optimizer,
        constrain=constrain,
        rows=rows,
        constants=constants_of(jax.tree.leaves(first)),
        num_rows=stream.num_rows,
        annealed=_annealed(sampler, sites, rows),
        kl_schedule=weight,
        compute_dtype=compute_dtype,
    )
    no_step, none = jnp.int32(0), jnp.int32(-1)
    state = FitState(no_step, params, optimizer.init(params), none)
    saved = Saved(state, np.zeros(0, np.float32), np.zeros((0, 2)), 0, start)
    checkpoints = None
    if checkpoint is not None:
        from ppl_bnn.inference.fitting_checkpoint import Checkpoints  # orbax, which takes a second

        told = {
            "model": identity(model),
            "guide": _told_guide(guide, start),
            "objective": identity(vars(objective)),
            "optimizer": identity(optimizer.update),
            "kl_schedule": identity(weight),
            "rng_key": identity(jax.random.key_data(key_steps)),
            "batch_size": str(batch_size),
            "data": f"{stream.num_rows} rows, {identity(stream.first)}",
            "model_kwargs": identity(others),
            "compute_dtype": "none" if compute_dtype is None else jnp.dtype(compute_dtype).name,
            "validation": "none" if score is None else identity(score.leaves),
        }
        checkpoints = Checkpoints(checkpoint, told)
        saved = checkpoints.restore(state, start) or saved
        if saved.num_epochs > num_epochs:
            warnings.warn(
                f"`checkpoint` holds a fit of {saved.num_epochs} epochs, more than {num_epochs=}; "
                "it is returned as it is.",
                RuntimeWarning,
                stacklevel=2,
            )
    own_params = frozenset(n for n, s in sites.items() if s["type"] == "param")
    result = partial(
        Fit,
        model=model,
        guide=guide,
        _own_params=own_params,
        _rng_key=key_draws,
        _sampler=sampler,
    )
    loop = Loop(problem, stream, key_steps, others, score, checkpoints, mesh, result)
    try:
        return loop.run(saved, num_epochs, progress_bar)
    finally:
        if checkpoints is not None:
            checkpoints.close()


def _check_parts(guide: Any, objective: Any, optimizer: Any) -> None:
    """Refuse what is no guide, objective or optimizer."""
    if not callable(guide) or isinstance(guide, type):
        raise ValueError(f"`guide` must be a guide, such as AutoRank1(model), got {guide!r}.")
    if isinstance(guide, AutoLaplaceApproximation):
        raise ValueError(
            "`guide` is an AutoLaplaceApproximation, a point while it is fitted: take AutoDelta, "
            "or fit it by NumPyro's SVI and give `predict` its `sample_posterior`."
        )
    if objective is not None and (isinstance(objective, type) or not hasattr(objective, "loss")):
        raise ValueError(
            f"`objective` must be an ELBO, such as Rank1ELBO() or Trace_ELBO(), got {objective!r}."
        )
    if not (optimizer is None or isinstance(optimizer, optax.GradientTransformation)):
        raise ValueError(
            "`optimizer` must be one of optax's, such as optax.adam(1e-3), got "
            f"{type(optimizer).__name__}."
        )


def _check_guide(sampler: Sampler, sites: dict[str, dict]) -> None:
    """Refuse a guide of another model."""
    latent = {n for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
    own = sampler.points | sampler.others
    missing, unknown = sorted(latent - own), sorted(own - latent - sampler.auxiliary)
    if missing or unknown:
        raise ValueError(
            "`guide` is not one of `model`: "
            + "; ".join(
                f"{words} {names}"
                for words, names in (
                    ("it says nothing of the sites", missing),
                    ("the model does not have its sites", unknown),
                )
                if names
            )
        )


def _find_rows(model: Callable, data: Arguments, others: dict[str, Any]) -> Rows | None:
    """The rows of the data, which no other argument can be mistaken for."""
    args, kwargs = data
    positional = list(inspect.signature(model).bind(*args, **kwargs, **others).arguments)
    names = [*positional[: len(args)], *kwargs]
    return find_rows(model, args, kwargs | others, names)


def _kl_schedule(kl_schedule: Callable | float | None) -> Callable | None:
    if kl_schedule is None:
        return None
    if callable(kl_schedule):
        first = np.asarray(kl_schedule(jnp.int32(0)))
        if first.shape or not 0 <= first < np.inf:
            raise ValueError(
                "`kl_schedule` must give one weight of at least 0 for a number of steps; at step 0 "
                f"it gives {first}."
            )
        return kl_schedule
    if not (is_number(kl_schedule) and 0 <= kl_schedule < np.inf):
        raise ValueError(
            "`kl_schedule` must be a function from steps to weights or a weight of at least 0, got "
            f"{kl_schedule!r}."
        )
    return optax.constant_schedule(kl_schedule)


def _annealed(sampler: Sampler, sites: dict[str, dict], rows: Rows) -> frozenset[str]:
    """Sites whose divergence the schedule weighs: those that the guide does not make points."""
    if not sampler.auxiliary:
        return sampler.others
    # one vector for all sites
    latent = {n for n, s in sites.items() if s["type"] == "sample" and n not in rows.sites}
    return sampler.auxiliary | latent


def _score(model: Callable, validation: Any, others: dict[str, Any]) -> Score:
    if not (isinstance(validation, RowSource) or are_arrays(validation)):
        raise ValueError(
            "`validation` must be the model's arguments, as a tuple of arrays or as a dictionary "
            f"of them by name, or a `ppl_bnn.RowSource`; got {kinds(validation)}."
        )
    source = as_source(validation, "validation")
    data = source.arguments(np.arange(source.num_rows))
    arguments = data[0], data[1] | others
    try:
        checked_trace(model, *arguments)
    except ValueError as error:
        error.add_note("This is about `validation`.")
        raise
    rows = _find_rows(model, data, others)
    assert rows is not None
    return Score(model, arguments, rows)


def _told_guide(guide: Any, params: Values) -> str:
    """A guide by its settings or, where they are NumPyro's business, by where it begins."""
    settings = guide if isinstance(guide, AutoRank1) else type(guide).__qualname__
    return identity([settings, params])
