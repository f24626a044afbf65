"""The face of all stochastic-gradient kernels for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.util import is_prng_key

from ppl_bnn.batch_density import BatchDensity, batch_density
from ppl_bnn.inference.chains import Chains
from ppl_bnn.inference.estimators import Anchor, at_anchor
from ppl_bnn.inference.hmc_settings import check_init_params
from ppl_bnn.inference.kernel import ModelKernel
from ppl_bnn.inference.sgmcmc_options import Options, check_learnt_preconditioner, is_known
from ppl_bnn.inference.sgmcmc_settings import Settings
from ppl_bnn.inference.sgmcmc_start import begin, check_start, step_scales, warn_unstable
from ppl_bnn.inference.sgmcmc_transition import (
    SGMCMCState,
    Step,
    check_continued,
    transition,
)
from ppl_bnn.mesh import CHAINS, size
from ppl_bnn.row_source import as_source, refuse_row_statistics
from ppl_bnn.rows import concretely
from ppl_bnn.target import Target

Tree = dict[str, jax.Array]

ROWS_LOOKED_AT = 16  # at least, of data that are read in batches, to check model and data


class SGMCMC(ModelKernel):
    """A stochastic-gradient kernel for NumPyro's `MCMC`; a subclass says what one step is.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments.
    step_size : float or schedule
        The overdamped update is ``theta - h * gradient + sqrt(2 h T) z``, with the gradient of the
        *sum* over all rows (N / B times that of a batch). A schedule is a function of the step's
        number, from 0 and through warm-up: those of `ppl_bnn.schedules`, or of optax.
    batch_size : int
        Rows of a minibatch, B.
    batching : {"iid", "without_replacement", "epochs"}
        How rows are drawn; see `ppl_bnn.inference.batches.draw`.
    gradient : {"plain", "control_variates", "svrg"}
        The estimate of the gradient. Control variates take its difference to that at an anchor,
        where the gradient over all rows is computed once: the end of the warm start. SVRG moves
        the anchor to the chain every `refresh_interval` steps, each time with a pass over all rows.
    refresh_interval : int, optional
        Needed with, and only with, ``gradient="svrg"``.
    temperature : float or schedule
        Sample the posterior with prior and likelihood raised to 1 / temperature. It multiplies the
        variance of the injected noise, never the gradient. 0 makes an optimiser.
    steps_per_draw : int
        Steps of a transition. NumPyro's loop copies the state once for each transition, and keeps
        one draw of it; `num_warmup` and `num_samples` count transitions.
    mesh : jax.sharding.Mesh, optional
        Each device along its ``"data"`` axis computes its share of every batch, and holds all
        rows; vectorised chains are spread over its ``"chains"`` axis.
    chunk_size : int, optional
        Rows evaluated at once on a device in passes over all rows.
    batches : tuple, dict or RowSource, optional
        The model's data where they do not fit in a device's memory: its positional arguments, or
        its keyword arguments by name, as arrays on the host (memory-mapped, of h5py, ...), of
        which each step reads its rows; or a `ppl_bnn.RowSource`. `MCMC.run` then gets a key alone.
    init_strategy : "prior", "network", callable or dict
        As in `ppl_bnn.HMC`.
    warm_start : int
        Steps of Adam, on minibatches, that each chain takes before its first transition.
    """

    default_fields: tuple[str, ...] = (
        "z",
        "potential_energy",
        "step_size",
        "temperature",
        "is_kept",
        "failed_at",
    )

    core_state: type  # of the algorithm
    preconditioner: Any = "identity"
    adapt_preconditioner = "warmup"

    def __init__(self, model: Callable, **options: Unpack[Options]):
        super().__init__(model)
        try:
            self.settings = Settings(**options)
        except TypeError as error:  # an option that is missing or that no kernel has
            own = str(error).replace("Settings.__init__()", type(self).__name__)
            raise TypeError(own) from None
        batches = self.settings.batches
        self.source = None if batches is None else as_source(batches)
        self._first_rows: tuple[tuple, dict] = (), {}
        if self.source is not None:
            num_rows = max(self.settings.batch_size, ROWS_LOOKED_AT)
            first = np.arange(min(num_rows, self.source.num_rows))
            self._first_rows = self.source.arguments(first)

    def _core_init(self, rng_key: jax.Array, position: Tree, temperature: jax.Array) -> Any:
        raise NotImplementedError

    def _core_step(self, core: Any, step: Step) -> Any:
        raise NotImplementedError

    def _make_target(self, args: tuple, kwargs: dict) -> Target:
        settings = self.settings
        # temperature 0: over all rows it gives the log density without Jacobian, as anchors need it
        target = Target(
            self._model,
            args,
            kwargs,
            mesh=settings.mesh,
            chunk_size=settings.chunk_size,
            temperature=0.0,
            by_rows=True,
        )
        if target.rows is None:
            raise ValueError(
                "the model has no observed site with one value for each row of its data, so there "
                "is nothing to draw minibatches of: use `ppl_bnn.HMC`."
            )
        if self.source is not None:
            if target.has_deterministic:
                refuse_row_statistics(self._model, self.source)
            target.rows = target.rows._replace(num_rows=self.source.num_rows)
            target.fingerprint ^= jnp.uint32(self.source.num_rows % 2**32)
        if settings.batch_size > target.rows.num_rows:
            raise ValueError(
                f"`batch_size` is {settings.batch_size}, but the model was given "
                f"{target.rows.num_rows} rows; give at most that many."
            )
        return target

    def _target_for(self, args: tuple, kwargs: dict | None) -> Target:
        if self.source is not None and (args or kwargs):
            raise ValueError(
                "the kernel reads the model's data from `batches`, so `MCMC.run` takes a key and "
                f"nothing else; it got {len(args)} positional and {len(kwargs or {})} keyword "
                "arguments."
            )
        if self.source is not None:
            args, kwargs = self._first_rows
        return super()._target_for(args, kwargs)

    def _density(self, target: Target, arrays: Any) -> BatchDensity:
        settings = self.settings
        return batch_density(
            target,
            arrays,
            settings.batch_size,
            source=self.source,
            chunk_size=settings.chunk_size,
        )

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> SGMCMCState:
        """State of a chain before its first transition, or of many if `rng_key` is a batch.

        Raises
        ------
        ValueError
            If data, model or settings do not fit, or the log density at a start is not finite.

        Warns
        -----
        RuntimeWarning
            If the first step size is beyond the limit of stability at the start.
        """
        adapt = self.adapt_preconditioner
        check_learnt_preconditioner(self.preconditioner, adapt, num_warmup)
        state, curvature = self._start(rng_key, init_params, model_args, model_kwargs)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state.z)):
            warn_unstable(state.step_size, curvature)
        num_warmup_field = jnp.full_like(state.num_warmup, num_warmup)
        chains = Chains(not is_prng_key(rng_key), self.settings.mesh)
        return chains.commit(state._replace(num_warmup=num_warmup_field))

    def stability_limit(self, rng_key: jax.Array, *args: Any, **kwargs: Any) -> float:
        """The step size beyond which a chain would leave where it starts, after its `warm_start`.

        It is 2 over the largest curvature of the potential there, measured on a minibatch by power
        iteration. Draws want a tenth of it or less.

        Parameters
        ----------
        rng_key : jax.Array
            Random number generator key.
        *args, **kwargs
            What the model is called with, as `MCMC.run` takes it.

        Raises
        ------
        ValueError
            If the preconditioner is one that is learnt during warm-up, and as in `init`.
        """
        if not is_known(self.preconditioner):
            raise ValueError(
                f"`preconditioner` is {self.preconditioner!r}, which may learn during warm-up: "
                "before that there is no limit to be measured."
            )
        _, curvature = self._start(rng_key, None, args, kwargs)
        return 2 / float(np.max(curvature))

    def _start(self, rng_key, init_params, model_args, model_kwargs):
        """State of chains that is checked, and the largest curvature there."""
        target = self._target_for(model_args, model_kwargs)
        settings = self.settings
        chains = Chains(not is_prng_key(rng_key), settings.mesh)
        num_groups = size(settings.mesh, CHAINS)
        if chains.batched and len(rng_key) % num_groups:
            raise ValueError(
                f"`num_chains` is {len(rng_key)}, which the {num_groups} groups of devices along "
                f"the {CHAINS!r} axis of `mesh` cannot share evenly."
            )
        if init_params is not None:
            num_chains = len(rng_key) if chains.batched else None
            init_params = check_init_params(init_params, target.shapes(), num_chains)
        key = (chains.batched, init_params is not None)
        if key not in target.starts:
            with concretely():
                scales = step_scales(target) if init_params is None else None
            begin = partial(self._begin, target, scales)
            mapped = chains.map(begin, (0, 0 if init_params is not None else None, None))
            target.starts[key] = jax.jit(mapped)
        arrays = target.data.read()
        state, curvature = target.starts[key](rng_key, init_params, arrays)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(state.z)):
            check_start(target, chains.stacked(state.z), arrays)
        return state, curvature

    def _begin(self, target, scales, rng_key, position, arrays):
        density = self._density(target, arrays)
        steps = self._core_init, self._core_step, self.preconditioner
        return begin(rng_key, position, target, self.settings, density, scales, *steps)

    def sample(
        self, state: SGMCMCState, model_args: tuple, model_kwargs: dict | None
    ) -> SGMCMCState:
        """One transition, `steps_per_draw` steps, of a chain or of all vectorised chains."""
        if type(state.core) is not self.core_state:
            raise TypeError(
                f"the state comes from another kernel, with a core of type {type(state.core)!r}; "
                f"{type(self).__name__} continues only its own."
            )
        check_continued(state, self.settings)
        target = self._target_for(model_args, model_kwargs)
        arrays = target.data.read()
        chains = Chains(jnp.ndim(state.i) == 1, self.settings.mesh)
        density = self._density(target, arrays)
        state = _refresh(state, target, density, chains)
        return transition(state, self.settings, self._core_step, target, density, chains)

    def get_diagnostics_str(self, state: SGMCMCState) -> str:
        """Text for the progress bar."""
        if int(state.failed_at) >= 0:
            return f"frozen at step {int(state.failed_at)}"
        return f"step size {float(state.step_size):.2e}"


def _refresh(
    state: SGMCMCState, target: Target, density: BatchDensity, chains: Chains
) -> SGMCMCState:
    """Recompute the anchor of a state that comes from other data."""
    if state.anchor is None:
        return state
    position = state.anchor.position

    def recompute(state: SGMCMCState) -> SGMCMCState:
        anchor: Anchor = chains.map(lambda z: at_anchor(z, density.all_rows))(position)
        return state._replace(
            anchor=anchor, data=jnp.broadcast_to(target.fingerprint, state.data.shape)
        )

    stale = jnp.any(state.data != target.fingerprint)
    return jax.lax.cond(stale, recompute, lambda state: state, state)
