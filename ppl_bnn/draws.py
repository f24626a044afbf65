"""What a set of draws is: the one form in which everything downstream reads an engine's result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from numpyro.infer import MCMC

from ppl_bnn._arviz import posterior
from ppl_bnn.identity import identity

# attribute of a data set whose chains are none, and what it says
COMPONENTS, NO_CHAINS = "chain", "components of a fit, which need not agree"


@dataclass(frozen=True)
class Draws:
    """Draws of a model's sites, grouped by chain, on the host.

    Attributes
    ----------
    samples
        Site name -> array of shape (chain, draw, ...), in the site's own (constrained) space.
    model
        The NumPyro model that the draws belong to.
    stats
        Sampler statistic -> array of shape (chain, draw, ...); empty where the engine has none.
    fitted
        Name of an argument of the model -> what the fit called it with; empty where not known.
    shared
        Site name -> array that is the same in all draws, kept once.
    are_chains
        Whether the leading axis holds chains of one sampler, which should agree, rather than
        components or members, which need not.
    """

    samples: dict[str, np.ndarray]
    model: Callable | None = None
    stats: dict[str, np.ndarray] = field(default_factory=dict)
    fitted: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, np.ndarray] = field(default_factory=dict)
    are_chains: bool = True

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return next(iter(self.samples.values())).shape[0]

    @property
    def num_draws(self) -> int:
        """Number of draws in each chain."""
        return next(iter(self.samples.values())).shape[1]

    def whole(self) -> dict[str, np.ndarray]:
        """The samples, with what is shared repeated for each draw (as views, without memory)."""
        lead = self.num_chains, self.num_draws
        shared = {n: np.broadcast_to(v, (*lead, *np.shape(v))) for n, v in self.shared.items()}
        return self.samples | shared

    def flat(self) -> dict[str, np.ndarray]:
        """The samples with chains one after the other: (chain * draw, ...)."""
        return {name: value.reshape(-1, *value.shape[2:]) for name, value in self.samples.items()}


def as_draws(draws: Any, model: Callable | None = None, *, group_by_chain: bool = False) -> Draws:
    """Bring the result of an engine into the one form that this package reads.

    Parameters
    ----------
    draws
        An `numpyro.infer.MCMC` that has run, a dictionary of samples, what `to_arviz` made (also
        read back from a file; with `model`), a `ppl_bnn.Fit`, a list of these (an ensemble, of
        which every member takes the place of its components), or `Draws`.
    model
        The model that the draws belong to; by default the one that the MCMC ran.
    group_by_chain
        For a dictionary: whether its arrays start with (chain, draw) rather than with (draw,),
        as in `MCMC.get_samples`.

    Returns
    -------
    Draws
        Repeated draws stay repeated: a rejected proposal counts its chain's position again. Draws
        from the exploration stage of a cyclical step size are left out.

    Raises
    ------
    ValueError
        If the MCMC has not run or its schedule kept no draw, or if the arrays disagree in their
        numbers of chains and draws.
    TypeError
        If `draws` is none of the above.
    """
    if isinstance(draws, Draws):
        return draws if model is None else replace(draws, model=model)
    if _has_draws(draws):
        return as_draws(draws.draws(), model)
    if isinstance(draws, list) and draws and all(map(_has_draws, draws)):
        return _together([as_draws(member, model) for member in draws])
    if isinstance(draws, MCMC):
        if draws.last_state is None:
            raise ValueError("the MCMC given as `draws` holds no draws: call its `run` first")
        stats = {
            name: value
            for name, value in draws.get_extra_fields(group_by_chain=True).items()
            if isinstance(value, jax.Array | np.ndarray)
        }
        samples, kept_stats = _kept(
            _on_host(draws.get_samples(group_by_chain=True)), _on_host(stats)
        )
        return Draws(
            samples=samples,
            model=getattr(draws.sampler, "model", None) if model is None else model,
            stats=kept_stats,
            fitted=by_name(getattr(draws.sampler, "model", None), draws._args, draws._kwargs),
        )
    saved = posterior(draws)
    if saved is not None:
        samples = {v.attrs.get("site", name): v.values for name, v in saved.data_vars.items()}
        return Draws(samples=samples, model=model, are_chains=COMPONENTS not in saved.attrs)
    if isinstance(draws, Mapping):
        samples = _on_host(draws)
        if not group_by_chain:
            samples = {name: value[None] for name, value in samples.items()}
        _check_leading_axes(samples)
        return Draws(samples=samples, model=model)
    raise TypeError(
        "`draws` must be an MCMC that has run, what `fit` or `to_arviz` made, a list of "
        "fits, or a dictionary from site names to arrays, as `MCMC.get_samples` returns it; got "
        f"{'an empty list' if draws == [] else type(draws).__name__}"
    )


Arrays = dict[str, np.ndarray]


def _has_draws(result: Any) -> bool:
    """Whether it is `Draws`, or a result that gives some by itself, as that of `ppl_bnn.fit`."""
    return isinstance(result, Draws) or callable(getattr(result, "draws", None))


def _together(members: list[Draws]) -> Draws:
    """An ensemble; what members share each within itself becomes draws of the whole."""
    sizes = {member.num_draws for member in members}
    if len(sizes) > 1:
        raise ValueError(
            f"the members given as `draws` have {sorted(sizes)} draws: all need the same number, "
            "as in [member.draws(num_samples) for member in members]"
        )
    whole = [member.whole() for member in members]
    sites = {tuple(sorted(samples)) for samples in whole}
    if len(sites) > 1:
        raise ValueError(
            f"the members given as `draws` are of different models: their sites are {sorted(sites)}"
        )
    if len({identity(member.model) for member in members}) > 1:
        raise ValueError(
            "the members given as `draws` are of different models, and each can only be run in its "
            "own: predict with each, and average"
        )
    samples = {name: np.concatenate([m[name] for m in whole]) for name in whole[0]}
    return replace(members[0], samples=samples, stats={}, shared={}, are_chains=False)


def _kept(samples: Arrays, stats: Arrays) -> tuple[Arrays, Arrays]:
    """The draws that a sampler's schedule lets count, which are the same in all chains."""
    if "is_kept" not in stats or stats["is_kept"].all():
        return samples, stats
    kept = stats["is_kept"].all(axis=0)
    if not kept.any():
        raise ValueError(
            "the step-size schedule keeps none of the draws of this run: make it longer than the "
            "exploration stage of a cycle, or take fewer `steps_per_draw`"
        )
    return ({n: v[:, kept] for n, v in samples.items()}, {n: v[:, kept] for n, v in stats.items()})


def by_name(model: Callable | None, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names that they have in the model."""
    if model is None:
        return {}
    try:
        return dict(inspect.signature(model).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {}


def _on_host(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    # On the CPU this is a view; on an accelerator it frees the device for the evaluation.
    return {name: np.asarray(value) for name, value in arrays.items()}


def _check_leading_axes(samples: dict[str, np.ndarray]) -> None:
    if not samples:
        raise ValueError("`draws` is an empty dictionary; expected site names and their samples")
    shapes = {name: value.shape for name, value in samples.items()}
    counts = {shape[:2] for shape in shapes.values()}
    if any(len(count) < 2 for count in counts):
        raise ValueError(
            "the arrays of `draws` start with the axis of draws, or with (chain, draw) where "
            f"group_by_chain=True; got (chain, draw, ...) shapes {shapes}"
        )
    if len(counts) > 1:
        raise ValueError(
            "the arrays of `draws` differ in their numbers of chains and draws; samples of one "
            f"run share them; got (chain, draw, ...) shapes {shapes}"
        )
    if 0 in counts.pop():
        raise ValueError(f"`draws` holds no draws; got (chain, draw, ...) shapes {shapes}")
