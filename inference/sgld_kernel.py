"""`ppl_bnn.SGLD`: the core of `sgld.py` as a kernel for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import jax

from ppl_bnn.inference import sgld
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
        ``step_size`` and ``batch_size``, which must be given, and the others that
        `ppl_bnn.SGMCMC` describes: ``batching``, ``gradient``, ``refresh_interval``,
        ``temperature``, ``steps_per_draw``, ``mesh``, ``chunk_size``, ``batches``,
        ``init_strategy``, ``warm_start``.

    Notes
    -----
    The factor to the step size of Welling & Teh and of Li et al. is 1/2: their epsilon is ``2 h``.

    Examples
    --------
    >>> from numpyro.infer import MCMC
    >>> kernel = SGLD(model, step_size=1e-5, batch_size=128, steps_per_draw=100)  # doctest: +SKIP
    >>> mcmc = MCMC(kernel, num_warmup=50, num_samples=500)  # doctest: +SKIP
    """

    core_state = sgld.State
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
        check_preconditioner(preconditioner, adapt_preconditioner)
        check_noise_estimate(noise_estimate)
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
        return sgld.init(position, make_preconditioner(self.preconditioner))

    def _core_step(self, core: Any, step: Step) -> Any:
        return sgld.step(
            step.rng_key,
            core,
            step.gradient,
            preconditioner=make_preconditioner(self.preconditioner),
            adapt=True if self.adapt_preconditioner == "always" else step.in_warmup,
            curvature_correction=self.curvature_correction,
            noise_estimate=step.by_site(self.noise_estimate),
            step_size=step.step_size,
            temperature=step.temperature,
            noise=step.noise,
        )
