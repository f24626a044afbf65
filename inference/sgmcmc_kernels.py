"""`ppl_bnn.SGLD`, `SGHMC` and `SGNHT`: the cores of those names as kernels for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import jax
import numpy as np
from jax.sharding import Mesh

from ppl_bnn.choices import check_choice
from ppl_bnn.inference import sghmc, sgld, sgnht
from ppl_bnn.inference.preconditioner import Preconditioner, adam, diagonal, identity, rmsprop
from ppl_bnn.inference.sgmcmc_kernel import SGMCMC
from ppl_bnn.inference.sgmcmc_settings import Schedule

Tree = dict[str, jax.Array]

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


class SGLD(SGMCMC):
    """Stochastic gradient Langevin dynamics (Welling & Teh 2011), a kernel for NumPyro's `MCMC`.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments.
    preconditioner : "identity", "rmsprop", "adam", dict or Preconditioner
        Step sizes by coordinate: "rmsprop" is pSGLD (Li et al. 2016), "adam" a heuristic; a
        dictionary gives a fixed one for each unconstrained site, posterior variances for instance;
        `ppl_bnn.inference.preconditioner` makes others.
    adapt_preconditioner : "warmup" or "always"
        Whether an adaptive preconditioner is frozen after warm-up, without which draws are biased.
    curvature_correction : bool
        Add the term of pSGLD that is usually left out, at the price of a Hessian-vector product.
    noise_estimate : float or dict, optional
        Variance of the gradient's noise, for each coordinate, to be taken off the injected noise.
    **options
        ``step_size`` and ``batch_size``, which must be given, and the others that `SGMCMC`
        describes: ``batching``, ``gradient``, ``refresh_interval``, ``temperature``,
        ``steps_per_draw``, ``mesh``, ``chunk_size``, ``init_strategy``, ``warm_start``.

    Notes
    -----
    The factor to the step size of Welling & Teh and of Li et al. is 1/2: their epsilon is ``2 h``.

    Examples
    --------
    >>> from numpyro.infer import MCMC
    >>> kernel = SGLD(model, step_size=1e-5, batch_size=128, steps_per_draw=100)  # doctest: +SKIP
    >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=500)  # doctest: +SKIP
    """

    default_fields = (*SGMCMC.default_fields, "info.virial")

    def __init__(
        self,
        model: Callable,
        *,
        preconditioner: str | Mapping[str, Any] | Preconditioner = "identity",
        adapt_preconditioner: str = "warmup",
        curvature_correction: bool = False,
        noise_estimate: Any = None,
        **options: Unpack[Options],
    ):
        super().__init__(model, **options)
        _check_preconditioner(preconditioner, adapt_preconditioner)
        _check_noise_estimate(noise_estimate)
        if curvature_correction and (self.settings.mesh is not None):
            raise ValueError(
                "`curvature_correction` needs a Hessian-vector product, which the likelihood over "
                "a `mesh` does not have: run without one of the two."
            )
        self.preconditioner = preconditioner
        self.adapt_preconditioner = adapt_preconditioner
        self.curvature_correction = curvature_correction
        self.noise_estimate = noise_estimate

    def _core_init(self, rng_key: jax.Array, position: Tree, temperature: jax.Array) -> Any:
        return sgld.init(position, _make(self.preconditioner))

    def _core_step(
        self,
        rng_key: jax.Array,
        core: Any,
        gradient: Callable,
        *,
        step_size: jax.Array,
        temperature: jax.Array,
        in_warmup: jax.Array,
    ) -> Any:
        return sgld.step(
            rng_key,
            core,
            gradient,
            preconditioner=_make(self.preconditioner),
            adapt=True if self.adapt_preconditioner == "always" else in_warmup,
            curvature_correction=self.curvature_correction,
            noise_estimate=self.noise_estimate,
            step_size=step_size,
            temperature=temperature,
        )


class SGHMC(SGMCMC):
    """Stochastic gradient Hamiltonian Monte Carlo (Chen et al. 2014), for NumPyro's `MCMC`.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments.
    friction : float
        Of the momentum, per unit of the time sqrt(2 h) of a step.
    momentum_decay : float, optional
        Instead of `friction`: the share of the momentum that is left after a step, as deep-learning
        optimisers name it, whatever the step size.
    integrator : "baoab" or "semi_implicit"
        "baoab" is exact for Gaussians with exact gradients.
    preconditioner, adapt_preconditioner, noise_estimate
        As in `SGLD`; the preconditioner is the inverse of the masses.
    **options
        As in `SGLD`.

    Notes
    -----
    Chen et al.'s learning rate eta is ``2 h``, and their alpha ``sqrt(2 h) * friction``. The
    SGHMC-CLR-Prec of Izmailov et al. (2021) is ``preconditioner="rmsprop"`` with
    ``momentum_decay=0.95``, ``integrator="semi_implicit"``, ``adapt_preconditioner="always"`` and
    `ppl_bnn.schedules.cyclical`.
    """

    default_fields = (*SGMCMC.default_fields, "info.virial", "info.kinetic_temperature")

    def __init__(
        self,
        model: Callable,
        *,
        friction: float | None = None,
        momentum_decay: float | None = None,
        integrator: str = "baoab",
        preconditioner: str | Mapping[str, Any] | Preconditioner = "identity",
        adapt_preconditioner: str = "warmup",
        noise_estimate: Any = None,
        **options: Unpack[Options],
    ):
        super().__init__(model, **options)
        if (friction is None) == (momentum_decay is None):
            raise ValueError(
                "give one of `friction` and `momentum_decay`, got "
                f"friction={friction!r} and momentum_decay={momentum_decay!r}."
            )
        if friction is not None and not 0 < friction < np.inf:
            raise ValueError(f"`friction` must be positive and finite, got {friction!r}.")
        if momentum_decay is not None and not 0 <= momentum_decay < 1:
            raise ValueError(f"`momentum_decay` must be in [0, 1), got {momentum_decay!r}.")
        check_choice("integrator", integrator, sghmc.INTEGRATORS)
        _check_preconditioner(preconditioner, adapt_preconditioner)
        _check_noise_estimate(noise_estimate)
        self.friction = friction
        self.momentum_decay = momentum_decay
        self.integrator = integrator
        self.preconditioner = preconditioner
        self.adapt_preconditioner = adapt_preconditioner
        self.noise_estimate = noise_estimate

    def _core_init(self, rng_key: jax.Array, position: Tree, temperature: jax.Array) -> Any:
        return sghmc.init(
            rng_key,
            position,
            temperature=temperature,
            preconditioner=_make(self.preconditioner),
        )

    def _core_step(
        self,
        rng_key: jax.Array,
        core: Any,
        gradient: Callable,
        *,
        step_size: jax.Array,
        temperature: jax.Array,
        in_warmup: jax.Array,
    ) -> Any:
        friction: Any = self.friction
        if self.momentum_decay is not None:
            time = jax.numpy.sqrt(2 * step_size)
            is_exact = self.integrator == "baoab"
            rate = -np.log(max(self.momentum_decay, 1e-30)) if is_exact else 1 - self.momentum_decay
            friction = rate / time
        return sghmc.step(
            rng_key,
            core,
            gradient,
            friction=friction,
            integrator=self.integrator,
            preconditioner=_make(self.preconditioner),
            adapt=True if self.adapt_preconditioner == "always" else in_warmup,
            noise_estimate=self.noise_estimate,
            step_size=step_size,
            temperature=temperature,
        )


class SGNHT(SGMCMC):
    """Stochastic gradient Nosé-Hoover thermostat (Ding et al. 2014), for NumPyro's `MCMC`.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments.
    diffusion : float
        A: the injected noise has variance ``2 A`` per unit of the time sqrt(2 h) of a step. The
        thermostat's friction settles where momenta have the right temperature, whatever the
        gradient's noise.
    thermostat : "global" or "per_parameter"
        One friction for all coordinates, for noise that is alike in all directions; or one each.
    integrator : "badodab" or "euler"
    thermal_mass : float
        Larger is slower and steadier.
    **options
        As in `SGLD`.

    Notes
    -----
    The step of Ding et al. and of Leimkuhler & Shang (2016) is ``sqrt(2 h)``.
    """

    default_fields = (
        *SGMCMC.default_fields,
        "info.virial",
        "info.kinetic_temperature",
        "info.friction",
    )

    def __init__(
        self,
        model: Callable,
        *,
        diffusion: float = 1.0,
        thermostat: str = "global",
        integrator: str = "badodab",
        thermal_mass: float = 1.0,
        **options: Unpack[Options],
    ):
        super().__init__(model, **options)
        for name, value in (("diffusion", diffusion), ("thermal_mass", thermal_mass)):
            if not 0 < value < np.inf:
                raise ValueError(f"`{name}` must be positive and finite, got {value!r}.")
        check_choice("thermostat", thermostat, sgnht.THERMOSTATS)
        check_choice("integrator", integrator, sgnht.INTEGRATORS)
        self.diffusion = diffusion
        self.thermostat = thermostat
        self.integrator = integrator
        self.thermal_mass = thermal_mass

    def _core_init(self, rng_key: jax.Array, position: Tree, temperature: jax.Array) -> Any:
        return sgnht.init(
            rng_key,
            position,
            temperature=temperature,
            diffusion=self.diffusion,
            thermostat=self.thermostat,
        )

    def _core_step(
        self,
        rng_key: jax.Array,
        core: Any,
        gradient: Callable,
        *,
        step_size: jax.Array,
        temperature: jax.Array,
        in_warmup: jax.Array,
    ) -> Any:
        return sgnht.step(
            rng_key,
            core,
            gradient,
            diffusion=self.diffusion,
            thermal_mass=self.thermal_mass,
            integrator=self.integrator,
            step_size=step_size,
            temperature=temperature,
        )


def _make(preconditioner: str | Mapping[str, Any] | Preconditioner) -> Preconditioner:
    if isinstance(preconditioner, str):
        return PRECONDITIONERS[preconditioner]()
    if isinstance(preconditioner, Mapping):
        return diagonal(preconditioner)
    return preconditioner


def _check_preconditioner(preconditioner: Any, adapt: str) -> None:
    check_choice("adapt_preconditioner", adapt, ("warmup", "always"))
    if isinstance(preconditioner, str):
        check_choice("preconditioner", preconditioner, tuple(PRECONDITIONERS))
    elif not isinstance(preconditioner, Mapping | Preconditioner):
        raise ValueError(
            f"`preconditioner` must be one of {tuple(PRECONDITIONERS)}, a dictionary of arrays by "
            "site, or what `ppl_bnn.inference.preconditioner` makes, got "
            f"{preconditioner!r}."
        )


def _check_noise_estimate(value: Any) -> None:
    for leaf in jax.tree.leaves(value):
        if not np.all(np.asarray(leaf) >= 0):
            raise ValueError(f"`noise_estimate` is a variance, not negative; got {value!r}.")
