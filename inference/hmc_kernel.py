"""`ppl_bnn.HMC`: the core of `hmc.py` as a kernel for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from numpyro.util import is_prng_key

from ppl_bnn.inference import adaptation, start
from ppl_bnn.inference.chains import Chains
from ppl_bnn.inference.hmc_settings import Settings, check_init_params
from ppl_bnn.inference.hmc_transition import HMCState, first_state, refresh, transition
from ppl_bnn.inference.kernel import ModelKernel
from ppl_bnn.inference.mass_matrix import Metric
from ppl_bnn.kinks import warn_kinks
from ppl_bnn.mesh import CHAINS, size
from ppl_bnn.rows import concretely
from ppl_bnn.target import Target


class HMC(ModelKernel):
    """Hamiltonian Monte Carlo for Bayesian neural networks, on all the data.

    A kernel for `numpyro.infer.MCMC`, for any NumPyro model with continuous latent sites.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    step_size : float, optional
        Leapfrog step size, in units of the square root of the inverse mass matrix: by default in
        prior standard deviations. Where it is adapted, the value to begin with. To use a step
        given in parameter units, as in the paper, set ``inverse_mass_matrix="identity"``, or
        divide it by the prior standard deviation: 1e-5 at prior variance 1/5 is 2.2e-5.
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
        Leapfrog steps that a transition may take at most. By default 100,000 where the step size
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
        of NumPyro's ``init_to_*``; or constrained values by site, where sites that are not
        named start from the prior.
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

    default_fields = (
        "z",
        "diverging",
        "accept_prob",
        "is_accepted",
        "energy",
        "energy_error",
        "potential_energy",
        "num_steps",
        "step_size",
        "trajectory_length",
        "failed_at",
        "metropolis",
    )

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
        super().__init__(model)
        self.settings = Settings(**options)

    def _make_target(self, args: tuple, kwargs: dict) -> Target:
        settings = self.settings
        return Target(
            self._model,
            args,
            kwargs,
            mesh=settings.mesh,
            chunk_size=settings.chunk_size,
            temperature=settings.temperature,
        )

    def _look_at(self, target: Target) -> None:
        warn_kinks(target.probe_terms, target.shapes())

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
        begin, metric, length = self._plan_start(target, chains, init_params is not None)
        arrays = target.data.read()
        chain, step_size, rng_key = begin(rng_key, init_params, arrays)
        start.check_start(target, chain, arrays, chains.batched)
        step_size = jnp.exp(jnp.mean(jnp.log(step_size)))
        length = settings.length(length, step_size)
        settings.check_num_steps(length, step_size)
        state = first_state(
            chain,
            rng_key,
            num_warmup=num_warmup,
            trajectory_length=length,
            adapt_state=adaptation.start(
                step_size, metric, chains.first(chain.position), settings.adapt_mass_matrix
            ),
            data=target.fingerprint,
        )
        return chains.commit(state)

    def _plan_start(
        self, target: Target, chains: Chains, is_given: bool
    ) -> tuple[Callable, Metric, Any]:
        """Compiled start of all chains, masses and trajectory length, made once for a target."""
        key = (chains.batched, is_given)
        if key not in target.starts:
            settings = self.settings
            with concretely():
                metric, length = settings.metric_and_length(target, target.shapes())

            # the data are an argument here too, so that no program holds them as a constant
            def begin(rng_key, position, arrays):
                log_density = target.log_density(arrays)
                return start.begin(rng_key, position, target, log_density, metric, length, settings)

            mapped = chains.map(begin, (0, 0 if is_given else None, None))
            target.starts[key] = jax.jit(mapped), metric, length
        return target.starts[key]

    def sample(self, state: HMCState, model_args: tuple, model_kwargs: dict | None) -> HMCState:
        """One transition of a chain, or of all vectorised chains together."""
        target = self._target_for(model_args, model_kwargs)
        arrays = target.data.read()
        chains = Chains(jnp.ndim(state.i) == 1, self.settings.mesh)
        state = refresh(state, target, arrays, chains)
        return transition(state, self.settings, target, arrays, chains)

    def refresh(self, state: HMCState, model_args: tuple, model_kwargs: dict | None) -> HMCState:
        """State with log density and gradient at its position for these data."""
        target = self._target_for(model_args, model_kwargs)
        chains = Chains(jnp.ndim(state.i) == 1, self.settings.mesh)
        return refresh(state, target, target.data.read(), chains)

    def get_diagnostics_str(self, state: HMCState) -> str:
        """Text for the progress bar."""
        if int(state.failed_at) >= 0:
            return f"frozen at transition {int(state.failed_at)}"
        return (
            f"{int(state.num_steps)} steps of size {float(state.step_size):.2e}. "
            f"acc. prob={float(state.mean_accept_prob):.2f}"
        )
