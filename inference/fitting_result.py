"""What `fit` gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.distributions import Delta

from ppl_bnn.arguments import check_integer
from ppl_bnn.checks import base
from ppl_bnn.draws import Arrays, Draws, by_name
from ppl_bnn.inference.rank1_guide import AutoRank1, Values

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
        The step, counted from 0, that would have made something not finite, and did not; None if
        all went well.
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
    _sampler: Sampler

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
            If there was no validation, or the fit ended before its first epoch did.
        """
        if self._best_params is None:
            raise ValueError(
                "nothing tells which parameters are best: give `fit` the argument `validation`, "
                f"and a first epoch (this fit took {len(self.losses)} steps and validated none)"
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
        if isinstance(self.guide, AutoRank1):
            num_samples = 1 if self.guide.is_point else num_samples
            samples, shared = self.guide.draw(rng_key, self.params, num_samples)
        else:
            samples, shared = self._sampler(rng_key, self.params, num_samples), {}
        own_params = {name: np.asarray(self.params[name]) for name in self._own_params}
        return Draws(
            samples,
            self.model,
            fitted=by_name(self.model, *self._sampler.probe),
            shared=shared | own_params,
            are_chains=False,
        )


class Sampler:
    """Draws from a guide that only NumPyro knows, by one compiled program.

    Parameters
    ----------
    guide : callable
        Has been set up.
    params : dict
        Its parameters at the start.
    probe : tuple
        Arguments that it can be run on.

    Attributes
    ----------
    points, others : frozenset of str
        Sample sites of the guide that are points, and those that are drawn.
    auxiliary : frozenset of str
        Those that stand for no site of the model, such as one vector for all.
    """

    def __init__(self, guide: Callable, params: Values, probe: tuple[tuple, dict[str, Any]]):
        self.guide, self.probe = guide, probe
        trace = self._trace(jax.random.key(0), params)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        is_point = {name: isinstance(base(site["fn"]), Delta) for name, site in sites.items()}
        self.points = frozenset(name for name in sites if is_point[name])
        self.others = frozenset(sites) - self.points
        self.auxiliary = frozenset(n for n, s in sites.items() if s["infer"].get("is_auxiliary"))
        self._draw = jax.jit(self._run, static_argnums=2)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_draw"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._draw = jax.jit(self._run, static_argnums=2)

    def __call__(self, rng_key: jax.Array, params: Values, num_samples: int) -> Arrays:
        """By site, shape (1, num_samples, ...), or one draw where all are points."""
        drawn = self._draw(rng_key, params, num_samples if self.others else 1)
        return {name: np.asarray(value)[None] for name, value in drawn.items()}

    def _run(self, rng_key: jax.Array, params: Values, num_samples: int) -> Values:
        def one(key: jax.Array) -> Values:
            trace = self._trace(key, params)
            return {n: site["value"] for n, site in trace.items() if site["type"] == "sample"}

        return jax.vmap(one)(jax.random.split(rng_key, num_samples))

    def _trace(self, rng_key: jax.Array, params: Values) -> dict[str, Any]:
        args, kwargs = self.probe
        pinned = handlers.substitute(handlers.seed(self.guide, rng_key), data=params)
        return handlers.trace(pinned).get_trace(*args, **kwargs)


def num_values(params: Values) -> int:
    """Number of all values in the parameters."""
    return sum(int(np.size(value)) for value in params.values())
