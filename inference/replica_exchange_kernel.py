"""`ppl_bnn.ReplicaExchangeSGLD`: the core of `replica_exchange.py` for NumPyro's `MCMC`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from ppl_bnn.arguments import check_integer, is_number
from ppl_bnn.inference import replica_exchange
from ppl_bnn.inference.sgmcmc_kernel import SGMCMC
from ppl_bnn.inference.sgmcmc_options import Options
from ppl_bnn.inference.sgmcmc_transition import SGMCMCState, Step

Tree = dict[str, jax.Array]

SLOWEST = 0.01  # weight of a new observation in the running mean of the noise's variance


class State(NamedTuple):
    """The coldest replica, which gives the draws, and the others."""

    position: Tree
    others: Tree  # with a leading axis over the other temperatures
    noise_variance: jax.Array  # s^2 of the swaps, shape (temperatures - 1,)


class Info(NamedTuple):
    """What was seen in one step; between neighbours, shape (temperatures - 1,)."""

    potential: jax.Array  # of the coldest replica
    gradient_norm: jax.Array  # the largest of all replicas
    virial: jax.Array  # of the coldest replica
    swap_probability: jax.Array
    swap_rate: jax.Array  # swaps made
    noise_variance: jax.Array  # s^2


class ReplicaExchangeSGLD(SGMCMC):
    """Replica-exchange SGLD (Deng et al. 2020), a kernel for NumPyro's `MCMC`.

    Each chain has one replica for each temperature. Hot ones cross between modes that a cold one
    would never leave, and neighbours swap places. Draws are those of the coldest.

    Parameters
    ----------
    model : callable
        A NumPyro model whose observed sites sit in a plate over the rows of its arguments.
    temperatures : sequence of float
        In units of ``temperature``: ascending, the first of them 1.
    swap_interval : int
        Steps from one attempt to swap to the next.
    swap_noise : float, optional
        s^2, half the variance that the difference of two replicas' potentials has because both
        are estimated from a minibatch. By default it is measured during warm-up, for each pair of
        neighbours, from the difference of two batches' estimates, and then kept.
    correction : float
        F: swaps are corrected for ``s^2 / F``. At 1 they keep detailed balance; more makes them
        more frequent, at the price of a bias.
    **options
        As in `SGLD`. ``step_size`` is that of all replicas.

    Notes
    -----
    Swaps go by potentials of a batch of their own, so that a swap tells nothing about the noise of
    the gradient that follows. The correction is exact for normal noise of known variance. It costs
    swaps exponentially: with ``temperatures=(1, T)`` they are worth trying while ``s (1 - 1/T)`` is
    not much above 1, which takes large batches, or ``gradient="control_variates"``.

    The Jacobian of the transform to unconstrained space is that of ``temperature`` at all replicas.

    References
    ----------
    Deng, Feng, Gao, Liang & Lin (2020), *Non-convex learning via replica exchange stochastic
    gradient MCMC*.

    Examples
    --------
    >>> kernel = ReplicaExchangeSGLD(  # doctest: +SKIP
    ...     model, temperatures=(1.0, 3.0, 10.0), step_size=1e-4, batch_size=500
    ... )
    """

    core_state = State
    default_fields = (
        *SGMCMC.default_fields,
        "info.virial",
        "info.swap_probability",
        "info.swap_rate",
        "info.noise_variance",
    )

    def __init__(
        self,
        model: Callable,
        *,
        temperatures: Sequence[float],
        swap_interval: int = 1,
        swap_noise: float | None = None,
        correction: float = 1.0,
        **options: Unpack[Options],
    ):
        super().__init__(model, **options)
        factors: np.ndarray
        try:
            factors = np.asarray(temperatures, np.float32)
        except (TypeError, ValueError):
            factors = np.zeros(0, np.float32)
        if (
            factors.ndim != 1
            or factors.size < 2
            or factors[0] != 1
            or (np.diff(factors) <= 0).any()
        ):
            raise ValueError(
                "`temperatures` must list at least two, ascending from 1, in units of "
                f"`temperature`; got {temperatures!r}."
            )
        if not np.isfinite(factors).all():
            raise ValueError(f"`temperatures` must be finite, got {temperatures!r}.")
        check_integer("swap_interval", swap_interval, 1)
        if swap_noise is not None and not (is_number(swap_noise) and 0 <= swap_noise < np.inf):
            raise ValueError(f"`swap_noise` is a variance, not negative; got {swap_noise!r}.")
        if not (is_number(correction) and 1 <= correction < np.inf):
            raise ValueError(f"`correction` must be at least 1, got {correction!r}.")
        is_cold = not callable(self.settings.temperature) and self.settings.temperature == 0
        if is_cold or hasattr(self.settings.step_size, "is_sampling"):
            raise ValueError(
                "replicas need a `temperature` above 0 at every step, for they swap by the "
                "difference of its inverse: no temperature=0, and no cyclical step size, whose "
                "exploration has none."
            )
        self.temperatures = factors
        self.swap_interval = int(swap_interval)
        self.swap_noise = swap_noise
        self.correction = correction

    def init(self, rng_key: jax.Array, num_warmup: int, *args: Any, **kwargs: Any) -> SGMCMCState:
        """As in `SGLD`; refuses to go without the warm-up that measures the swaps' noise."""
        if num_warmup == 0 and self.swap_noise is None:
            raise ValueError(
                "the noise of the swaps is measured during warm-up, and `num_warmup` is 0: give "
                "`num_warmup`, or the noise itself as `swap_noise`."
            )
        return super().init(rng_key, num_warmup, *args, **kwargs)

    def _core_init(self, rng_key: jax.Array, position: Tree, temperature: jax.Array) -> State:
        num_others = len(self.temperatures) - 1
        noise = jnp.full(num_others, self.swap_noise or 0.0, jnp.result_type(float))
        others = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_others, *x.shape)), position)
        return State(position, others, noise)

    def _core_step(self, core: State, step: Step) -> tuple[State, Info]:
        position = jax.tree.map(
            lambda first, others: jnp.concatenate([first[None], others]),
            core.position,
            core.others,
        )
        moved, info = replica_exchange.step(
            step.rng_key,
            replica_exchange.init(position),
            step.gradient,
            step_size=step.step_size,
            temperatures=step.temperature * self.temperatures,
            noise_variance=core.noise_variance,
            correction=self.correction,
            swap=step.number % self.swap_interval == 0,
            potential=step.potential,
        )
        noise = core.noise_variance
        if self.swap_noise is None:
            weight = jnp.maximum(1 / (step.number + 1), SLOWEST)
            learnt = noise + weight * (info.difference_error**2 / 4 - noise)
            learns = step.in_warmup & jnp.isfinite(info.difference_error)
            noise = jnp.where(learns, learnt, noise).astype(noise.dtype)
        state = State(
            position=jax.tree.map(lambda x: x[0], moved.position),
            others=jax.tree.map(lambda x: x[1:], moved.position),
            noise_variance=noise,
        )
        return state, Info(
            potential=info.potential[0],
            gradient_norm=jnp.max(info.gradient_norm),
            virial=info.virial[0],
            swap_probability=info.swap_probability,
            swap_rate=info.is_swapped,
            noise_variance=core.noise_variance,
        )
