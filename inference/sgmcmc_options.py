"""Options of stochastic-gradient kernels: their types, and preconditioners by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import jax
import numpy as np
from jax.sharding import Mesh

from ppl_bnn.arguments import check_choice, is_number
from ppl_bnn.inference.preconditioner import Preconditioner, adam, diagonal, identity, rmsprop
from ppl_bnn.inference.sgmcmc_settings import Schedule

PRECONDITIONERS = {"identity": identity, "rmsprop": rmsprop, "adam": adam}


class Options(TypedDict, total=False):
    """Options of all stochastic-gradient kernels, which `SGMCMC` describes."""

    step_size: float | Schedule
    batch_size: int
    batching: str
    gradient: str
    refresh_interval: int | None
    temperature: float | Schedule
    steps_per_draw: int
    mesh: Mesh | None
    chunk_size: int | None
    init_strategy: Any
    warm_start: int
    batches: Any


def make_preconditioner(preconditioner: str | Mapping[str, Any] | Preconditioner) -> Preconditioner:
    """Preconditioner by name, or of fixed scales, or as it is."""
    if isinstance(preconditioner, str):
        return PRECONDITIONERS[preconditioner]()
    if isinstance(preconditioner, Mapping):
        return diagonal(preconditioner)
    return preconditioner


def check_preconditioner(preconditioner: Any, adapt: str) -> None:
    """Refuse what `make_preconditioner` does not know."""
    check_choice("adapt_preconditioner", adapt, ("warmup", "always"))
    if isinstance(preconditioner, str):
        check_choice("preconditioner", preconditioner, tuple(PRECONDITIONERS))
    elif not isinstance(preconditioner, Mapping | Preconditioner):
        raise ValueError(
            f"`preconditioner` must be one of {tuple(PRECONDITIONERS)}, a dictionary of arrays by "
            "site, or what `ppl_bnn.inference.preconditioner` makes, got "
            f"{preconditioner!r}."
        )


def check_noise_estimate(value: Any) -> None:
    """Refuse what is neither a variance nor a dictionary of them by site."""
    leaves = list(value.values()) if isinstance(value, Mapping) else [value]
    for leaf in leaves if value is not None else []:
        is_array = isinstance(value, Mapping) and isinstance(leaf, np.ndarray | jax.Array)
        if not (is_number(leaf) or is_array) or not np.all(np.asarray(leaf) >= 0):
            raise ValueError(
                "`noise_estimate` is a variance, not negative, or a dictionary of variances by "
                f"site; got {value!r}."
            )


def is_known(preconditioner: Any) -> bool:
    """Whether a preconditioner says what it scales by before it has seen a gradient."""
    return isinstance(preconditioner, Mapping) or preconditioner == "identity"


def check_learnt_preconditioner(preconditioner: Any, adapt: str, num_warmup: int) -> None:
    """Refuse to freeze what has learnt nothing."""
    learns = isinstance(preconditioner, str) and not is_known(preconditioner)
    if learns and adapt == "warmup" and num_warmup == 0:
        raise ValueError(
            f"`preconditioner` is {preconditioner!r}, which learns during warm-up, and "
            '`num_warmup` is 0: give `num_warmup`, or adapt_preconditioner="always".'
        )
