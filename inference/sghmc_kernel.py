"""`ppl_bnn.SGHMC`: the core of `sghmc.py` as a kernel for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import jax
import numpy as np

from ppl_bnn.arguments import check_choice, is_number
from ppl_bnn.inference import sghmc
from ppl_bnn.inference.preconditioner import Preconditioner
from ppl_bnn.inference.sgmcmc_kernel import SGMCMC
from ppl_bnn.inference.sgmcmc_options import (
    Options,
    check_noise_estimate,
    check_preconditioner,
    make_preconditioner,
)
from ppl_bnn.inference.sgmcmc_transition import Step

Tree = dict[str, jax.Array]


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

    core_state = sghmc.State
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
        if friction is not None and not (is_number(friction) and 0 < friction < np.inf):
            raise ValueError(f"`friction` must be positive and finite, got {friction!r}.")
        if momentum_decay is not None and not (
            is_number(momentum_decay) and 0 <= momentum_decay < 1
        ):
            raise ValueError(f"`momentum_decay` must be in [0, 1), got {momentum_decay!r}.")
        check_choice("integrator", integrator, sghmc.INTEGRATORS)
        check_preconditioner(preconditioner, adapt_preconditioner)
        check_noise_estimate(noise_estimate)
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
            preconditioner=make_preconditioner(self.preconditioner),
        )

    def _core_step(self, core: Any, step: Step) -> Any:
        friction: Any = self.friction
        if self.momentum_decay is not None:
            time = jax.numpy.sqrt(2 * step.step_size)
            is_exact = self.integrator == "baoab"
            rate = -np.log(max(self.momentum_decay, 1e-30)) if is_exact else 1 - self.momentum_decay
            friction = rate / jax.numpy.where(time > 0, time, 1)  # a step of size 0 is none
        return sghmc.step(
            step.rng_key,
            core,
            step.gradient,
            friction=friction,
            integrator=self.integrator,
            preconditioner=make_preconditioner(self.preconditioner),
            adapt=True if self.adapt_preconditioner == "always" else step.in_warmup,
            noise_estimate=step.by_site(self.noise_estimate),
            step_size=step.step_size,
            temperature=step.temperature,
            noise=step.noise,
        )
