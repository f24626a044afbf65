"""What `fit` gives back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.distributions import Delta
from numpyro.infer import Predictive

from ppl_bnn.arguments import check_integer
from ppl_bnn.checks import base
from ppl_bnn.draws import Draws, by_name
from ppl_bnn.inference.rank1_guide import AutoRank1

Values = dict[str, jax.Array]
NUM_SAMPLES = 25  # of each component, as many as the paper takes for its clinical model


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A fitted guide, which `predict`, `function_space` and `to_arviz` take.

    Attributes
    ----------
    params
        Parameters of the guide (and the model's own), by name, after the last step.
    losses
        Negative objective for each row of the data in each step, in nats, shape (steps,).
    validation
        After each epoch: number of steps taken, and negative log predictive density for each row
        of the validation data, in nats, shape (epochs, 2); empty where none were given.
    failed_at
        The step that would have made something not finite, and did not; None if all went well.
    stopped
        Why the fit ended before its last epoch, in words; None if it did not.
    model, guide
        What was fitted.
    """

    params: Values
    losses: np.ndarray
    validation: np.ndarray
    failed_at: int | None
    stopped: str | None
    _best_params: Values | None
    model: Callable
    guide: Any
    _own_params: frozenset[str]
    _rng_key: jax.Array
    _probe: tuple[tuple, dict[str, Any]]

    def __repr__(self) -> str:
        """What there is, not its numbers."""
        words = [f"{len(self.losses):,} steps", f"{num_values(self.params):,} parameters"]
        if len(self.losses):
            words.append(f"loss {self.losses[-min(len(self.losses), 100) :].mean():.4g}")
        if len(self.validation):
            words.append(f"validation {self.validation[-1, 1]:.4g}")
        if self.failed_at is not None:
            words.append(f"failed at step {self.failed_at}")
        elif self.stopped:
            words.append("stopped early")
        return f"Fit({type(self.guide).__name__}: {', '.join(words)})"

    @property
    def best(self) -> Fit:
        """The fit as it was after the epoch whose validation was best.

        Raises
        ------
        ValueError
            If there was no validation.
        """
        if self._best_params is None:
            raise ValueError(
                "nothing tells which parameters are best: give `fit` the argument `validation`"
            )
        return replace(self, params=self._best_params)

    def draws(self, num_samples: int = NUM_SAMPLES, rng_key: jax.Array | None = None) -> Draws:
        """Draws from the guide, for `predict` and `function_space`.

        Parameters
        ----------
        num_samples : int
            Of each component; where the guide is a point, there is one.
        rng_key : jax.Array, optional
            By default the same in each call.

        Returns
        -------
        Draws
            With components in the place of chains.
        """
        check_integer("num_samples", num_samples, 1)
        rng_key = self._rng_key if rng_key is None else rng_key
        guide, (args, kwargs) = self.guide, self._probe
        shared: dict[str, np.ndarray] = {}
        if isinstance(guide, AutoRank1):
            num_samples = 1 if guide.is_point else num_samples
            samples, shared = guide.draw(rng_key, self.params, num_samples)
        else:
            sites = guide_sites(guide, self.params, self._probe)
            is_point = all(isinstance(base(fn), Delta) for fn in sites.values())
            draw = Predictive(guide, params=self.params, num_samples=1 if is_point else num_samples)
            values = draw(rng_key, *args, **kwargs)
            samples = {name: np.asarray(values[name])[None] for name in sites}
        return Draws(
            samples,
            self._fitted_model(),
            fitted=by_name(self.model, args, kwargs),
            shared=shared,
            are_chains=False,
        )

    @property
    def own_params(self) -> Values:
        """Parameters that the model itself declares (`numpyro.param`)."""
        return {name: self.params[name] for name in self._own_params}

    def _fitted_model(self) -> Callable:
        if not self._own_params:
            return self.model
        return functools.wraps(self.model)(handlers.substitute(self.model, data=self.own_params))


def guide_sites(
    guide: Callable, params: Values, probe: tuple[tuple, dict[str, Any]]
) -> dict[str, Any]:
    """Distributions of a guide's sample sites, run on `probe`."""
    args, kwargs = probe
    pinned = handlers.substitute(handlers.seed(guide, 0), data=params)
    trace = handlers.trace(pinned).get_trace(*args, **kwargs)
    return {name: site["fn"] for name, site in trace.items() if site["type"] == "sample"}


def num_values(params: Values) -> int:
    """Number of all values in the parameters."""
    return sum(int(np.size(value)) for value in params.values())
