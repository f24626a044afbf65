"""Gradients per second of `ppl_bnn.HMC` against a bare leapfrog loop, NumPyro's and BlackJAX's HMC.

All integrate the same posterior with the same step size, number of steps and mass matrix; each
leapfrog step counts as one gradient. What a sampler does besides (gradients at the start of a
trajectory, random numbers, the Metropolis test, adaptation that is switched off) counts as time.

The bare loop computes nothing but the gradient of the kernel's own potential function. The loop
"by hand" has in place of it the same posterior written in a few lines of jax.numpy, which shows
what the way through a NumPyro model costs. NumPyro's HMC takes the model, BlackJAX's the potential
function that NumPyro makes of it.

    python benchmarks/hmc_leapfrog.py [--quick] [--rounds 15]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from common import load_or_make_rows, ratio, run_cases, time_in_turns
from jax.flatten_util import ravel_pytree
from numpyro.infer import HMC as NumPyroHMC
from numpyro.infer.util import potential_energy

import ppl_bnn
from ppl_bnn import models, priors

NOISE = 0.3
STEP_SIZE = 1e-3  # prior standard deviations; small, so that every trajectory stays finite
REQUIRED = 0.95


@dataclass(frozen=True)
class Case:
    num_rows: int
    hidden_sizes: tuple[int, ...]
    num_chains: int
    num_steps: int  # of a trajectory
    num_transitions: int  # in one compiled call


CASES = [
    Case(927, (50,), 1, num_steps=100, num_transitions=20),
    Case(927, (50,), 4, num_steps=100, num_transitions=20),
    Case(10_000, (218, 218), 1, num_steps=20, num_transitions=1),
]


def compare(case: Case, num_rounds: int) -> None:
    x, y = load_or_make_rows("concrete", case.num_rows, num_features=8)
    net = models.MLP(x.shape[1], case.hidden_sizes, 1)
    model = models.regression(net, priors.fan_in_normal(), noise=NOISE)
    contenders, num_parameters = make_contenders(case, model, x, y)
    print(f"\nN = {len(x):,}, {num_parameters:,} parameters, {case.num_chains} chain(s)")

    calls = {name: prepare(contender) for name, contender in contenders.items()}
    seconds = time_in_turns(calls, num_rounds)
    gradients = case.num_steps * case.num_transitions * case.num_chains
    ours = seconds["ppl_bnn.HMC"]
    print(f"{'':20} gradients/s   ms per gradient   ppl_bnn ÷ it (median; quartiles)")
    for name, spent in seconds.items():
        median = np.median(spent)
        required = None if name == "ppl_bnn.HMC" else REQUIRED
        print(
            f"{name:20} {gradients / median:11,.0f}   {1e3 * median / gradients:15.4f}   "
            f"{ratio(spent, ours, required)}"
        )


def make_contenders(
    case: Case, model: Callable, x: np.ndarray, y: np.ndarray
) -> tuple[dict[str, tuple[Callable, object]], int]:
    """For each contender a function from its state to its state, and a state to start from."""
    keys = jax.random.split(jax.random.key(0), case.num_chains)
    key = keys if case.num_chains > 1 else keys[0]
    kernel = ppl_bnn.HMC(
        model,
        step_size=STEP_SIZE,
        num_steps=case.num_steps,
        adapt_step_size=False,
        trajectory_jitter=0.0,
        warm_start=0,
    )
    state = kernel.init(key, 0, None, (x, y), {})
    position = state.z
    one = jax.tree.map(lambda leaf: leaf[0], position) if case.num_chains > 1 else position
    inverse_mass = jax.tree.map(
        lambda leaf: leaf[0] if case.num_chains > 1 else leaf,
        state.adapt_state.inverse_mass_matrix.diagonal,
    )
    flat_inverse_mass, _ = ravel_pytree(inverse_mass)
    over_chains = jax.vmap if case.num_chains > 1 else lambda function: function

    def repeat(sample: Callable) -> Callable:
        return lambda state: jax.lax.fori_loop(
            0, case.num_transitions, lambda _, state: sample(state), state
        )

    target = kernel._target_for((x, y), {})

    def potential(position):
        return -jnp.sum(target.log_density(target.data.read())(position))

    device_x, device_y = jnp.asarray(x), jnp.asarray(y)

    def potential_by_hand(position):
        units = device_x
        for i in range(len(case.hidden_sizes) + 1):
            units = jax.nn.swish(units) if i else units
            units = units @ position[f"net/layers.{i}.kernel"] + position[f"net/layers.{i}.bias"]
        squares = jnp.sum(((device_y - units[:, 0]) / NOISE) ** 2)
        for name, value in position.items():
            squares += jnp.sum(value**2 / inverse_mass[name])
        return 0.5 * squares

    def bare_loop(potential):
        gradient_of = over_chains(jax.grad(potential))
        step = STEP_SIZE

        def kick(momentum, gradient):
            return jax.tree.map(lambda p, g: p - 0.5 * step * g, momentum, gradient)

        def leapfrog(_, carry):
            position, momentum, gradient = carry
            momentum = kick(momentum, gradient)
            position = jax.tree.map(
                lambda q, inverse, p: q + step * inverse * p, position, inverse_mass, momentum
            )
            gradient = gradient_of(position)
            return position, kick(momentum, gradient), gradient

        def run(carry):
            return jax.lax.fori_loop(0, case.num_steps * case.num_transitions, leapfrog, carry)

        # momenta of unit kinetic energy each, as the samplers draw them
        momentum = jax.tree.map(
            lambda q, inverse: jnp.ones_like(q) / jnp.sqrt(inverse), position, inverse_mass
        )
        return run, (position, momentum, gradient_of(position))

    numpyro_kernel = NumPyroHMC(
        model,
        step_size=STEP_SIZE,
        # both are given: the step is `trajectory_length / num_steps`, whatever `step_size` says
        trajectory_length=STEP_SIZE * case.num_steps,
        num_steps=case.num_steps,
        inverse_mass_matrix=flat_inverse_mass,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    numpyro_state = numpyro_kernel.init(key, 0, position, model_args=(x, y), model_kwargs={})

    blackjax_kernel = blackjax.hmc(
        lambda position: -potential_energy(model, (x, y), {}, position),
        step_size=STEP_SIZE,
        inverse_mass_matrix=flat_inverse_mass,
        num_integration_steps=case.num_steps,
    )

    def blackjax_sample(carry):
        state, key = carry
        key, key_step = jax.random.split(key)
        state, _ = blackjax_kernel.step(key_step, state)
        return state, key

    contenders = {
        "ppl_bnn.HMC": (repeat(lambda state: kernel.sample(state, (x, y), {})), state),
        "bare loop": bare_loop(potential),
        "bare loop, by hand": bare_loop(potential_by_hand),
        "NumPyro HMC": (
            repeat(lambda state: numpyro_kernel.sample(state, (x, y), {})),
            numpyro_state,
        ),
        "BlackJAX HMC": (
            repeat(over_chains(blackjax_sample)),
            (over_chains(blackjax_kernel.init)(position), key),
        ),
    }
    return contenders, sum(leaf.size for leaf in jax.tree.leaves(one))


def prepare(contender: tuple[Callable, object]) -> Callable:
    function, state = contender
    compiled = jax.jit(function)
    return lambda: compiled(state)


if __name__ == "__main__":
    run_cases(__doc__, ("ppl_bnn", "numpyro", "blackjax", "jax"), CASES, compare)
