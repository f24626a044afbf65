"""`ppl_bnn.SGNHT`: the core of `sgnht.py` as a kernel for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import jax
import numpy as np

from ppl_bnn.arguments import check_choice, is_number
from ppl_bnn.inference import sgnht
from ppl_bnn.inference.sgmcmc_kernel import SGMCMC
from ppl_bnn.inference.sgmcmc_options import Options
from ppl_bnn.inference.sgmcmc_transition import Step

Tree = dict[str, jax.Array]


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

    core_state = sgnht.State
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
            if not (is_number(value) and 0 < value < np.inf):
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

    def _core_step(self, core: Any, step: Step) -> Any:
        return sgnht.step(
            step.rng_key,
            core,
            step.gradient,
            diffusion=self.diffusion,
            thermal_mass=self.thermal_mass,
            integrator=self.integrator,
            step_size=step.step_size,
            temperature=step.temperature,
            noise=step.noise,
        )
