"""Steps per second of `ppl_bnn.SGLD`, `SGHMC` and `SGNHT` against BlackJAX, and a bare loop.

All run on the same posterior, data, batch size and step size, thousands of steps in one compiled
call; each step draws its own rows, independently, and takes one gradient (BlackJAX's SGHMC draws
rows for ten steps, as it is made). BlackJAX gets the log
prior and the log likelihood of a row written by hand in a few lines of jax.numpy, and a loop that
draws rows and calls its `step`. The bare loop draws rows and goes down the gradient of the kernel's
own minibatch estimate, with no noise and no statistics; the noisy loop adds one standard normal for
each parameter, as every one of the kernels must.

The last lines say what NumPyro's `MCMC` adds around the same steps, with its progress bar on; with
the bar off it compiles again in every run, which is in the figure.

    python benchmarks/sgmcmc_steps.py [--quick] [--rounds 15]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from common import load_or_make_rows, ratio, run_cases, time_in_turns
from numpyro.infer import MCMC

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.inference.estimators import plain
from ppl_bnn.inference.tree_math import normal_like

NOISE, FRICTION = 0.3, 10.0
STEP_SIZE = 1e-9  # small, so that every chain stays finite
KERNELS = {
    "SGLD": (ppl_bnn.SGLD, {}),
    "SGHMC": (ppl_bnn.SGHMC, {"friction": FRICTION}),
    "SGNHT": (ppl_bnn.SGNHT, {"diffusion": FRICTION}),
}
SGHMC_STEPS = 10  # of BlackJAX between new momenta, all on one batch; the last gradient is not used
AGAINST_BLACKJAX, AGAINST_BARE = 0.95, 0.9


@dataclass(frozen=True)
class Case:
    num_rows: int
    hidden_sizes: tuple[int, ...]
    batch_size: int
    num_chains: int
    num_steps: int  # in one compiled call


CASES = [
    Case(927, (50,), 32, 1, num_steps=5000),
    Case(927, (50,), 32, 4, num_steps=5000),
    Case(10_000, (218, 218), 128, 1, num_steps=300),
]


def compare(case: Case, num_rounds: int) -> None:
    x, y = load_or_make_rows("concrete", case.num_rows, num_features=8)
    print(
        f"\nN = {len(x):,}, hidden layers {case.hidden_sizes}, batches of {case.batch_size}, "
        f"{case.num_chains} chain(s)"
    )
    print(
        "kernel   steps/s    ÷ BlackJAX (quartiles)     ÷ bare loop (quartiles)     "
        "÷ noisy loop (quartiles)"
    )
    for name in KERNELS:
        calls = contenders(name, case, x, y)
        seconds = time_in_turns(calls, num_rounds)
        ours = seconds["ppl_bnn"]
        print(
            f"{name:6} {case.num_steps * case.num_chains / np.median(ours):9,.0f}"
            f"    {ratio(seconds['blackjax'], ours, AGAINST_BLACKJAX)}"
            f"    {ratio(seconds['bare'], ours, AGAINST_BARE)}"
            f"    {ratio(seconds['noisy'], ours, AGAINST_BARE)}"
        )


def contenders(name: str, case: Case, x: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], Any]]:
    """For each contender the call to time."""
    net = models.MLP(x.shape[1], case.hidden_sizes, 1)
    model = models.regression(net, priors.fan_in_normal(), noise=NOISE)
    keys = jax.random.split(jax.random.key(0), case.num_chains)
    key = keys if case.num_chains > 1 else keys[0]
    over_chains = jax.vmap if case.num_chains > 1 else lambda function: function
    kernel_class, own = KERNELS[name]
    kernel = kernel_class(
        model,
        step_size=STEP_SIZE,
        batch_size=case.batch_size,
        steps_per_draw=case.num_steps,
        warm_start=0,
        **own,
    )
    state = kernel.init(key, 0, None, (x, y), {})
    position = state.z
    device_x, device_y = jnp.asarray(x), jnp.asarray(y)
    num_rows = len(x)

    def rows(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (case.batch_size,), 0, num_rows)

    def compiled(function: Callable, *args: Any) -> Callable[[], Any]:
        program = jax.jit(function)
        return lambda: program(*args)

    algorithm = blackjax_algorithm(name, case, position, num_rows)
    inner = SGHMC_STEPS if name == "SGHMC" else 1

    def blackjax_run(key: jax.Array, state: Any) -> Any:
        def body(_, carry):
            key, state = carry
            key, key_rows, key_step = jax.random.split(key, 3)
            index = rows(key_rows)
            batch = device_x[index], device_y[index]
            step_size = STEP_SIZE if name == "SGLD" else (2 * STEP_SIZE) ** 0.5
            return key, algorithm.step(key_step, state, batch, step_size)

        return jax.lax.fori_loop(0, case.num_steps // inner, body, (key, state))

    target = kernel._target_for((x, y), {})

    def bare_run(key: jax.Array, position: Any, noise_scale: float = 0.0) -> Any:
        density = kernel._density(target, target.data.read())

        def body(_, carry):
            key, position, total = carry
            key, key_rows, key_noise = jax.random.split(key, 3)
            value, slope = plain(density.log_density, density.take(rows(key_rows)), 1.0)(position)
            moved = jax.tree.map(lambda z, g: z - STEP_SIZE * g, position, slope)
            if noise_scale:
                noise = normal_like(key_noise, position)
                moved = jax.tree.map(lambda z, n: z + noise_scale * n, moved, noise)
            return key, moved, total + value

        return jax.lax.fori_loop(0, case.num_steps, body, (key, position, jnp.zeros(())))

    def noisy_run(key: jax.Array, position: Any) -> Any:
        return bare_run(key, position, (2 * STEP_SIZE) ** 0.5)

    initial = (
        over_chains(lambda z, k: algorithm.init(z, k))(position, key)
        if name == "SGNHT"
        else position
    )
    return {
        "ppl_bnn": compiled(lambda s: kernel.sample(s, (x, y), {}), state),
        "blackjax": compiled(over_chains(blackjax_run), key, initial),
        "bare": compiled(over_chains(bare_run), key, position),
        "noisy": compiled(over_chains(noisy_run), key, position),
    }


def blackjax_algorithm(name: str, case: Case, position: dict, num_rows: int) -> Any:
    """BlackJAX's algorithm on the same posterior, written out by hand."""
    scales = {
        site: value.shape[-2] ** -0.5 if site.endswith("kernel") else 1.0
        for site, value in position.items()
    }

    def log_prior(position):
        return -0.5 * sum(jnp.sum((z / scales[site]) ** 2) for site, z in position.items())

    def log_likelihood(position, row):
        units, target = row
        for i in range(len(case.hidden_sizes) + 1):
            units = jax.nn.swish(units) if i else units
            units = units @ position[f"net/layers.{i}.kernel"] + position[f"net/layers.{i}.bias"]
        return -0.5 * jnp.sum(((target - units[0]) / NOISE) ** 2)

    gradient = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, num_rows)
    if name == "SGLD":
        return blackjax.sgld(gradient)
    if name == "SGHMC":
        return blackjax.sghmc(gradient, SGHMC_STEPS, alpha=FRICTION)
    return blackjax.sgnht(gradient, alpha=FRICTION)


def report_mcmc(case: Case) -> None:
    """What NumPyro's loop adds, with its progress bar, at several numbers of steps a draw."""
    x, y = load_or_make_rows("concrete", case.num_rows, num_features=8)
    net = models.MLP(x.shape[1], case.hidden_sizes, 1)
    model = models.regression(net, priors.fan_in_normal(), noise=NOISE)
    num_steps = 20_000
    print(f"\nSGLD under MCMC, one chain, {num_steps:,} steps; microseconds a step")
    print("steps_per_draw   progress bar   no bar, and compiling   one compiled call")
    for steps_per_draw in (1, 10, 100, 1000):
        kernel = ppl_bnn.SGLD(
            model,
            step_size=STEP_SIZE,
            batch_size=case.batch_size,
            steps_per_draw=steps_per_draw,
            warm_start=0,
        )
        spent = []
        for progress_bar in (True, False):
            mcmc = MCMC(
                kernel,
                num_warmup=0,
                num_samples=num_steps // steps_per_draw,
                progress_bar=progress_bar,
            )
            for _ in range(2):  # the first run compiles
                start = time.perf_counter()
                mcmc.run(jax.random.key(0), x, y)
                jax.block_until_ready(mcmc.last_state.z)
                seconds = time.perf_counter() - start
            spent.append(1e6 * seconds / num_steps)
        state = kernel.init(jax.random.key(0), 0, None, (x, y), {})
        num_draws = num_steps // steps_per_draw

        @jax.jit
        def run(state, kernel=kernel, num_draws=num_draws):
            return jax.lax.fori_loop(0, num_draws, lambda _, s: kernel.sample(s, (x, y), {}), state)

        jax.block_until_ready(run(state))
        start = time.perf_counter()
        jax.block_until_ready(run(state))
        alone = 1e6 * (time.perf_counter() - start) / num_steps
        print(f"{steps_per_draw:14}   {spent[0]:12.1f}   {spent[1]:21.1f}   {alone:17.1f}")


if __name__ == "__main__":
    run_cases(__doc__, ("ppl_bnn", "numpyro", "blackjax", "jax"), CASES, compare)
    report_mcmc(CASES[0])
