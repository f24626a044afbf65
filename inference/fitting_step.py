"""One step of `fit`, compiled once: a batch's objective, its gradient, the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.primitives import Messenger

from ppl_bnn.density import site_log_prob
from ppl_bnn.inference.rank1_elbo import Rank1ELBO
from ppl_bnn.inference.rank1_guide import Values
from ppl_bnn.likelihood import ScaleSites
from ppl_bnn.random_module import computing_in
from ppl_bnn.rows import Rows, is_array

ARRAY = object()  # stands where an array goes


def constants_of(leaves: list[Any]) -> tuple[Any, ...]:
    """Leaves that a compiled program may hold: all but arrays, whose places are marked."""
    return tuple(ARRAY if is_array(leaf) else leaf for leaf in leaves)


class FitState(NamedTuple):
    """Where a fit stands."""

    step: jax.Array  # steps taken, shape ()
    params: Values  # unconstrained
    opt_state: Any
    failed_at: jax.Array  # the step whose update was not finite, -1 where there is none; shape ()


class Saved(NamedTuple):
    """All that a fit remembers."""

    state: FitState
    losses: np.ndarray  # (steps,)
    validation: np.ndarray  # (epochs, 2)
    num_epochs: int  # done
    best_params: Values  # constrained; those of the state while there is no validation


class Problem(NamedTuple):
    """What is fitted, and how."""

    model: Callable
    guide: Callable
    objective: Any
    optimizer: optax.GradientTransformation
    constrain: Callable[[Values], Values]
    rows: Rows
    constants: tuple[Any, ...]  # the model's arguments that are no arrays, by the places of leaves
    num_rows: int
    annealed: frozenset[str]  # sites whose divergence from the prior is weighted
    kl_schedule: Callable | None
    compute_dtype: Any

    def loss(
        self, params: Values, step: jax.Array, rng_key: jax.Array, arrays: list[jax.Array]
    ) -> jax.Array:
        """Negative objective for each row of the data, estimated from a batch, in step `step`."""
        following = iter(arrays)
        leaves = [next(following) if c is ARRAY else c for c in self.constants]
        args, kwargs = jax.tree.unflatten(self.rows.treedef, leaves)
        batch_size = self.rows.split(leaves)[0][0].shape[0]
        model = ScaleSites(self.model, self.rows.seen_by, self.num_rows / batch_size)
        guide: Any = self.guide
        if self.kl_schedule is not None:
            weight = jnp.asarray(self.kl_schedule(step), jnp.result_type(float))
            model = ScaleSites(model, self.annealed, weight)
            if not isinstance(self.objective, Rank1ELBO):  # which reads the model's scales alone
                guide = ScaleSites(guide, self.annealed, weight)
        rng_key = jax.random.fold_in(rng_key, step)
        with computing_in(self.compute_dtype):
            total = self.objective.loss(
                rng_key, self.constrain(params), model, guide, *args, **kwargs
            )
        return total / self.num_rows

    def step(
        self, state: FitState, rng_key: jax.Array, arrays: list[jax.Array]
    ) -> tuple[FitState, jax.Array]:
        """The state after one more step and the loss before it; what fails changes nothing.

        The key, one for all steps, is an argument and no constant, so that fits which differ in it
        are one program.
        """
        value_and_gradient = jax.value_and_grad(self.loss)
        loss, gradient = value_and_gradient(state.params, state.step, rng_key, arrays)
        updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]
        is_finite = jnp.isfinite(loss) & jnp.all(jnp.stack(finite))
        goes_on = is_finite & (state.failed_at < 0)

        def kept(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(goes_on, a, b), new, old)

        is_first = ~is_finite & (state.failed_at < 0)
        return FitState(
            step=state.step + goes_on,
            params=kept(params, state.params),
            opt_state=kept(opt_state, state.opt_state),
            failed_at=jnp.where(is_first, state.step, state.failed_at),
        ), loss

    def explain(self, state: FitState, rng_key: jax.Array, arrays: list[jax.Array]) -> str:
        """Which sites or parameters make the step at which a fit failed not finite, in words."""
        seen: dict[str, tuple[float, bool]] = {}

        def note(name: str, largest: Any, is_finite: Any) -> None:
            before, was_finite = seen.get(name, (0.0, True))
            seen[name] = max(before, float(largest)), was_finite and bool(is_finite)

        watched = self._replace(model=_Watch(self.model, note))
        value_and_gradient = jax.jit(jax.value_and_grad(watched.loss))
        loss, gradient = value_and_gradient(state.params, state.step, rng_key, arrays)
        jax.effects_barrier()
        bad = [name for name, (_, is_finite) in seen.items() if not is_finite]
        words = [f"the loss is {float(loss):.6g}"]
        if bad:
            words.append(f"not finite at the sites {bad}")
        elif np.isfinite(loss):
            slopes = {n: bool(np.isfinite(np.asarray(g)).all()) for n, g in gradient.items()}
            steep = [name for name, is_finite in slopes.items() if not is_finite]
            words.append(
                f"but its gradient is not finite for {steep}"
                if steep
                else "but the optimizer's update is not"
            )
        latent = {name: size for name, (size, _) in seen.items() if name not in self.rows.sites}
        if latent:
            largest = max(latent, key=lambda name: np.nan_to_num(latent[name], nan=np.inf))
            words.append(f"the largest draw is {latent[largest]:.3g}, of {largest!r}")
        return "; ".join(words)


class _Watch(Messenger):
    """Tells, while a compiled program runs, how large the value of each sample site is."""

    def __init__(self, fn: Callable, note: Callable[[str, Any, Any], None]):
        super().__init__(fn)
        self.note = note

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Note a site's largest value, and whether value and log density are finite."""
        if msg["type"] != "sample":
            return
        value = jnp.asarray(msg["value"])
        is_finite = jnp.all(jnp.isfinite(value)) & jnp.all(jnp.isfinite(site_log_prob(msg)))
        size = jnp.max(jnp.abs(value)) if value.size else jnp.zeros(())
        jax.debug.callback(partial(self.note, msg["name"]), size, is_finite)
