"""`ppl_bnn.HMC`: the core of `hmc.py` as a kernel for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from ppl_bnn.inference import adaptation, hmc, start
from ppl_bnn.inference.hmc_settings import Settings, check_init_params, warn_collapse
from ppl_bnn.mesh import CHAINS, size
from ppl_bnn.target import Target

PATIENCE = 10  # transitions in a row that may be cut short before the kernel gives up


class HMCState(NamedTuple):
    """State of one chain; with vectorised chains each field has a leading axis of chains."""

    i: jax.Array  # transitions made, shape ()
    z: dict[str, jax.Array]  # unconstrained position
    z_grad: dict[str, jax.Array]  # gradient of the log density
    terms: jax.Array  # partial sums of the log density, shape (terms,)
    potential_energy: jax.Array
    energy: jax.Array
    trajectory_length: jax.Array  # before jitter
    step_size: jax.Array  # that the transition used
    num_steps: jax.Array  # leapfrog steps that the transition took
    accept_prob: jax.Array
    mean_accept_prob: jax.Array  # since the start of warm-up, or since its end
    is_accepted: jax.Array
    diverging: jax.Array
    metropolis: jax.Array  # whether the transition passed through a Metropolis test
    failed_at: jax.Array  # transition at which the kernel froze, -1 if it did not
    num_warmup: jax.Array
    adapt_state: adaptation.AdaptState
    data: jax.Array  # fingerprint of the data that `terms` and `z_grad` belong to
    rng_key: jax.Array


class HMC(MCMCKernel):
    """Hamiltonian Monte Carlo for Bayesian neural networks, on all the data.

    A kernel for `numpyro.infer.MCMC`, for any NumPyro model with continuous latent sites.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    step_size : float, optional
        Leapfrog step size, in units of the square root of the inverse mass matrix: by default in
        prior standard deviations. Where it is adapted, the value to begin with. To use a step
        given in parameter units, as in the paper, set ``inverse_mass_matrix="identity"``, or divide it
        by the prior standard deviation: 1e-5 at prior variance 1/5 is 2.2e-5 prior units.
    trajectory_length : float, optional
        In the same units. By default ``pi / 2 * sqrt(lambda_max(M @ Sigma))``, with ``Sigma`` the
        prior covariance: a quarter turn of the prior's slowest oscillator. That is pi / 2 for the
        default masses (and where these are adapted), and pi * alpha / 2 for identity masses and
        prior standard deviation alpha (Izmailov et al. 2021).
    num_steps : int, optional
        Leapfrog steps of a trajectory, instead of `trajectory_length`.
    inverse_mass_matrix : "prior", "identity", array or dict
        "prior": the prior variances in unconstrained coordinates. An array (over all sites in
        the order of their names, ravelled) or a dictionary from tuples of sites to arrays as in
        NumPyro: vectors are diagonals, matrices dense.
    max_num_steps : int, optional
        Leapfrog steps that a transition may take at most. By default 10,000 where the step size
        is adapted, and no limit where it is fixed. A sampler that would need more for ten
        transitions in a row of the warm-up, or at all after it, has collapsed: it freezes, notes
        the transition in ``failed_at``, and warns. What was drawn before is kept.
    adapt_step_size : bool
        Adapt the step size during warm-up, by dual averaging.
    adapt_mass_matrix : bool
        Set the diagonal masses to inverse posterior variances during warm-up.
    target_accept_prob : float
        Mean acceptance probability that the step size is adapted to.
    temperature : float
        Sample the posterior with prior and likelihood raised to 1 / temperature.
    metropolis_in_warmup, metropolis : bool
        Whether trajectories pass a Metropolis test, during and after warm-up. Without it draws
        are biased; the field ``metropolis`` of the sample statistics says which draws are.
    trajectory_jitter : float
        Each trajectory's length is drawn uniformly from ``trajectory_length`` times 1 plus or minus
        this, one draw for all vectorised chains. Fixed lengths resonate: on a Gaussian some
        directions would hardly mix. 0 reproduces the paper.
    mesh : jax.sharding.Mesh, optional
        Rows of the data are divided over its ``"data"`` axis, vectorised chains over its
        ``"chains"`` axis; `ppl_bnn.mesh` makes one.
    chunk_size : int, optional
        Rows evaluated at once on a device. By default all.
    init_strategy : "prior", "network", callable or dict
        Where chains start: a draw of the prior; draws like the network's own initial values; one
        of NumPyro's ``init_to_*``; or constrained values by site.
    warm_start : int
        Steps of Adam that each chain takes from its start before warm-up; 0 for none. The
        default start, without which wide priors make the step size collapse. `init_params` of
        ``MCMC.run`` are used as they are.

    Notes
    -----
    Chains that run side by side (``chain_method="vectorized"``) share one step size, adapted to
    their mean acceptance probability; chains of other methods have one each. Compare no draws
    across chain methods: they differ in their random numbers.

    Momenta are drawn from N(0, T M), and the energy error is divided by T, so that dynamics and
    trajectory length are the same at every temperature T. The Jacobian of the transform to
    unconstrained coordinates is not tempered.

    Data are held on their devices (sharded, with a `mesh`) and read as arguments by the compiled
    transition, also where NumPyro closes over the model's arguments. Pass large data as NumPy
    arrays: a `jax.Array` of the caller's stays on the device beside the kernel's.

    References
    ----------
    Izmailov, Vikram, Hoffman & Wilson (2021), *What are Bayesian neural network posteriors really
    like?*, section 4.

    Examples
    --------
    >>> from numpyro.infer import MCMC
    >>> mcmc = MCMC(HMC(model), num_warmup=100, num_samples=100)  # doctest: +SKIP
    >>> mcmc.run(jax.random.key(0), x, y)  # doctest: +SKIP
    """

    sample_field = "z"
    default_fields = (
        "z",
        "diverging",
        "accept_prob",
        "is_accepted",
        "energy",
        "potential_energy",
        "num_steps",
        "step_size",
        "trajectory_length",
        "failed_at",
        "metropolis",
    )
    # MCMC calls `init` again on a resumed run unless this is set; `sample` finds its data itself
    _sample_fn = True

    def __init__(
        self,
        model: Callable,
        *,
        step_size: float | None = None,
        trajectory_length: float | None = None,
        num_steps: int | None = None,
        inverse_mass_matrix: Any = "prior",
        max_num_steps: int | None = None,
        adapt_step_size: bool = True,
        adapt_mass_matrix: bool = False,
        target_accept_prob: float = 0.8,
        temperature: float = 1.0,
        metropolis_in_warmup: bool = True,
        metropolis: bool = True,
        trajectory_jitter: float = 0.3,
        mesh: Mesh | None = None,
        chunk_size: int | None = None,
        init_strategy: Any = "prior",
        warm_start: int = 1000,
    ):
        options = {k: v for k, v in locals().items() if k not in ("self", "model", "__class__")}
        if not callable(model):
            raise ValueError(f"`model` must be a NumPyro model, a function, got {model!r}.")
        self._model = model
        self.settings = Settings(**options)
        self._target: Target | None = None

    @property
    def model(self) -> Callable:
        """The user's model."""
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_target": None}  # placed data stay behind

    def _target_for(self, args: tuple, kwargs: dict | None) -> Target:
        """The posterior on these data, made once for the same arrays."""
        kwargs = kwargs or {}
        if self._target is not None and self._target.data.is_from(args, kwargs):
            return self._target
        make = partial(
            Target,
            self._model,
            args,
            kwargs,
            mesh=self.settings.mesh,
            chunk_size=self.settings.chunk_size,
            temperature=self.settings.temperature,
        )
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return make()
        with jax.ensure_compile_time_eval():
            self._target = make()
        return self._target

    def init(
        self,
        rng_key: jax.Array,
        num_warmup: int,
        init_params: Any,
        model_args: tuple,
        model_kwargs: dict | None,
    ) -> HMCState:
        """State of a chain before its first transition, or of many if `rng_key` is a batch.

        Raises
        ------
        ValueError
            If data, model or settings do not fit, or the log density at a start is not finite.
        """
        target = self._target_for(model_args, model_kwargs)
        settings = self.settings
        batched = not is_prng_key(rng_key)
        shapes = target.shapes()
        with jax.ensure_compile_time_eval():
            metric, length = settings.metric_and_length(target, shapes)
        if init_params is not None:
            num_chains = len(rng_key) if batched else None
            init_params = check_init_params(init_params, shapes, num_chains)
        leaves = target.data.read()

        def begin(key, position, leaves):
            return start.begin(
                key, position, target, target.log_density(leaves), metric, length, settings
            )

        # the data are an argument here too, so that no program holds them as a constant
        run = self._over_chains(begin, (0, None if init_params is None else 0, None), batched)
        state, step_size, key = jax.jit(run)(rng_key, init_params, leaves)
        start.check_start(target, state, leaves, batched)
        step_size = jnp.exp(jnp.mean(jnp.log(step_size)))
        one = jax.tree.map(lambda x: x[0], state.position) if batched else state.position
        adapt_state = adaptation.start(step_size, metric, one, settings.adapt_mass_matrix)
        if settings.num_steps is not None:
            length = settings.num_steps * step_size
        settings.check_num_steps(length, step_size)
        number = partial(jnp.asarray, dtype=jnp.result_type(float))
        potential_energy = -jnp.sum(state.terms, axis=-1)
        chains = potential_energy.shape
        spread = lambda tree: jax.tree.map(lambda x: jnp.broadcast_to(x, chains + x.shape), tree)
        shared = spread(
            {
                "i": jnp.int32(0),
                "trajectory_length": number(length),
                "step_size": number(step_size),
                "num_steps": jnp.int32(0),
                "accept_prob": number(0.0),
                "mean_accept_prob": number(0.0),
                "is_accepted": jnp.asarray(True),
                "diverging": jnp.asarray(False),
                "metropolis": jnp.asarray(True),
                "failed_at": jnp.int32(-1),
                "num_warmup": jnp.int32(num_warmup),
                "adapt_state": adapt_state,
                "data": target.data.fingerprint,
            }
        )
        return HMCState(
            z=state.position,
            z_grad=state.gradient,
            terms=state.terms,
            potential_energy=potential_energy,
            energy=potential_energy,
            rng_key=key,
            **shared,
        )

    def sample(self, state: HMCState, model_args: tuple, model_kwargs: dict | None) -> HMCState:
        """One transition of a chain, or of all vectorised chains together."""
        target = self._target_for(model_args, model_kwargs)
        leaves = target.data.read()
        batched = jnp.ndim(state.i) == 1
        first = partial(jax.tree.map, lambda x: x[0]) if batched else lambda tree: tree
        state = self._refresh(state, target, leaves, batched)

        def move(state):
            return self._transition(state, target, leaves, batched)

        def stay(state):
            return state._replace(i=state.i + 1, num_steps=jnp.zeros_like(state.num_steps))

        was_frozen = first(state.failed_at) >= 0
        new = jax.lax.cond(was_frozen, stay, move, state)
        record = first((new.failed_at, new.step_size, new.mean_accept_prob))
        warn = partial(jax.debug.callback, partial(warn_collapse, limit=self.settings.limit))
        has_failed = ~was_frozen & (record[0] >= 0)
        jax.lax.cond(has_failed, warn, lambda *_: None, has_failed, *record)
        return new

    def _transition(
        self, state: HMCState, target: Target, leaves: list, batched: bool
    ) -> HMCState:
        settings = self.settings
        first = partial(jax.tree.map, lambda x: x[0]) if batched else lambda tree: tree
        adapt_state, i, num_warmup, length = first(
            (state.adapt_state, state.i, state.num_warmup, state.trajectory_length)
        )
        split = jax.vmap(partial(jax.random.split, num=3)) if batched else partial(
            jax.random.split, num=3
        )
        keys = split(state.rng_key)
        rng_key, key_step, key_jitter = (keys[:, k] if batched else keys[k] for k in range(3))

        step_size, num_steps, capped = settings.plan_trajectory(
            first(key_jitter), adapt_state.step_size, length
        )
        in_warmup = i < num_warmup
        metropolis = jnp.where(in_warmup, settings.metropolis_in_warmup, settings.metropolis)

        def move(key, chain):
            return hmc.step(
                key,
                chain,
                target.log_density(leaves),
                metric=adapt_state.inverse_mass_matrix,
                step_size=step_size,
                num_steps=num_steps,
                temperature=settings.temperature,
                metropolis=metropolis,
            )

        chain = hmc.State(state.z, state.terms, state.z_grad)
        chain, info = self._over_chains(move, (0, 0), batched)(key_step, chain)

        def adapt(adapt_state):
            stacked = chain.position if batched else jax.tree.map(lambda x: x[None], chain.position)
            return adaptation.update(
                adapt_state,
                i=i,
                num_warmup=num_warmup,
                accept_prob=jnp.mean(info.accept_prob),
                positions=stacked,
                target_accept_prob=settings.target_accept_prob,
                adapt_step_size=settings.adapt_step_size,
            )

        new_adapt = jax.lax.cond(in_warmup, adapt, lambda s: s, adapt_state)
        num_capped = jnp.where(capped, adapt_state.num_capped + 1, 0)
        new_adapt = new_adapt._replace(num_capped=num_capped)
        has_failed = (num_capped >= PATIENCE) | (capped & ~in_warmup)
        count = jnp.where(in_warmup, i, i - num_warmup) + 1
        mean_accept_prob = (
            state.mean_accept_prob + (info.accept_prob - state.mean_accept_prob) / count
        )
        spread = partial(jax.tree.map, lambda new, old: jnp.broadcast_to(new, old.shape))
        like = lambda new, old: jnp.broadcast_to(new, old.shape).astype(old.dtype)
        return state._replace(
            i=state.i + 1,
            z=chain.position,
            z_grad=chain.gradient,
            terms=chain.terms,
            potential_energy=-jnp.sum(chain.terms, axis=-1),
            energy=info.energy,
            step_size=like(step_size, state.step_size),
            num_steps=like(num_steps, state.num_steps),
            accept_prob=info.accept_prob,
            mean_accept_prob=mean_accept_prob,
            is_accepted=info.is_accepted,
            diverging=info.is_divergent,
            metropolis=like(metropolis, state.metropolis),
            failed_at=like(jnp.where(has_failed, i, -1), state.failed_at),
            adapt_state=spread(new_adapt, state.adapt_state),
            rng_key=rng_key,
        )

    def refresh(self, state: HMCState, model_args: tuple, model_kwargs: dict | None) -> HMCState:
        """Log density and gradient at the state's position for these data."""
        target = self._target_for(model_args, model_kwargs)
        return self._refresh(state, target, target.data.read(), jnp.ndim(state.i) == 1)

    def _refresh(
        self, state: HMCState, target: Target, leaves: list, batched: bool
    ) -> HMCState:
        """Recompute what a state holds of its data, if these are not the data of this run."""

        def recompute(state):
            run = self._over_chains(lambda z: hmc.init(z, target.log_density(leaves)), 0, batched)
            fresh = run(state.z)
            return state._replace(
                terms=fresh.terms,
                z_grad=fresh.gradient,
                potential_energy=-jnp.sum(fresh.terms, axis=-1),
                data=jnp.broadcast_to(target.data.fingerprint, state.data.shape),
            )

        needed, got = jax.eval_shape(recompute, state).terms.shape, state.terms.shape
        if needed != got:
            raise ValueError(
                f"the state (`post_warmup_state`?) was made on data of another size: its log density has "
                f"{got[-1]} terms, on these data it has {needed[-1]}. Start a new `MCMC` for new data, with "
                "`init_params=last_state.z` to begin where the old one ended."
            )
        stale = jnp.any(state.data != target.data.fingerprint)
        return jax.lax.cond(stale, recompute, lambda state: state, state)

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Function from an unconstrained position to the sites' values, deterministic ones too."""
        target = self._target_for(model_args, model_kwargs)
        return lambda z: target.constrain(z, target.data.read())

    def get_diagnostics_str(self, state: HMCState) -> str:
        """Text for the progress bar."""
        if int(state.failed_at) >= 0:
            return f"frozen at transition {int(state.failed_at)}"
        return (
            f"{int(state.num_steps)} steps of size {float(state.step_size):.2e}. "
            f"acc. prob={float(state.mean_accept_prob):.2f}"
        )

    def _over_chains(self, function: Callable, in_axes: Any, batched: bool) -> Callable:
        if not batched:
            return function
        mesh = self.settings.mesh
        if size(mesh, CHAINS) == 1:
            return jax.vmap(function, in_axes=in_axes)
        spread = NamedSharding(mesh, PartitionSpec(CHAINS))
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,)
        mapped = jax.vmap(function, in_axes=in_axes, spmd_axis_name=CHAINS)

        def sharded(*args):
            constrain = partial(jax.lax.with_sharding_constraint, shardings=spread)
            return mapped(
                *(a if axis is None else jax.tree.map(constrain, a) for a, axis in zip(args, axes, strict=True))
            )

        return sharded
