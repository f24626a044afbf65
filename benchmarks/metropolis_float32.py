"""How far a float32 acceptance probability is from float64's, by the way energies are compared.

100,000 rows and a potential energy of about a million. Trajectories are run in float32; then every
way compares the very same start and end, and float64 says what the acceptance probability there
is. The last line is another question: what the trajectory's own rounding changes, that is the
energy error of a float32 trajectory against that of the float64 trajectory from the same start.

    python benchmarks/metropolis_float32.py [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from common import describe_machine, print_versions
from numpyro.infer.hmc_util import euclidean_kinetic_energy
from numpyro.infer.util import potential_energy

from ppl_bnn import models, priors
from ppl_bnn.inference import hmc
from ppl_bnn.inference.mass_matrix import (
    kinetic_difference,
    kinetic_energy,
    make_metric,
    sample_momentum,
)
from ppl_bnn.inference.start import descend
from ppl_bnn.target import Target

NUM_ROWS, NUM_STEPS, STEP_SIZE = 100_000, 20, 6e-5
NOISE = 0.05  # a fifth of the data's own, which makes the potential energy about ten a row
CHUNK_SIZE = 8192
LIMIT = 0.01

MODEL = models.regression(models.MLP(4, (10,), 1), priors.fan_in_normal(), noise=NOISE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 trajectories instead of 100")
    num_pairs = 10 if parser.parse_args().quick else 100
    print_versions("ppl_bnn", "numpyro", "jax")
    describe_machine()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 4))
    y = np.sin(x @ rng.normal(size=4)) + 0.24 * rng.normal(size=NUM_ROWS)
    data = x.astype(np.float32), y.astype(np.float32)

    pairs = trajectories(data, num_pairs)
    with jax.enable_x64(True):
        data64 = tuple(array.astype(np.float64) for array in data)
        of_float32_path = term_by_term(cast(pairs, np.float64), data64)
        of_float64_path = term_by_term(rerun(cast(pairs, np.float64), data64), data64)
    ways = {
        "ppl_bnn: difference of each block's sum": term_by_term(pairs, data),
        f"ppl_bnn, chunk_size={CHUNK_SIZE}": term_by_term(pairs, data, CHUNK_SIZE),
        "prior, likelihood, kinetic: three totals": separate_totals(pairs, data),
        "NumPyro: two total energies": total_energies(pairs, data),
    }

    potential = -np.mean([float(jnp.sum(start[0].terms)) for start, _ in pairs])
    exact = accept_prob(of_float32_path)
    print(
        f"\nU = {potential:,.0f}; {num_pairs} trajectories of {NUM_STEPS} steps, mean |energy "
        f"error| {np.abs(of_float32_path).mean():.2f}, mean acceptance {exact.mean():.2f}\n"
        f"{'float32 against float64, same end points':44} mean |difference| of acceptance"
    )
    for name, difference in ways.items():
        error = np.abs(accept_prob(difference) - exact)
        print(f"{name:44} {error.mean():.4f} ± {error.std() / num_pairs**0.5:.4f}")
    rounding = np.abs(exact - accept_prob(of_float64_path))
    print(
        f"{'the trajectory itself in float32':44} {rounding.mean():.4f} ± "
        f"{rounding.std() / num_pairs**0.5:.4f}"
    )
    error = max(np.abs(accept_prob(d) - exact).mean() for d in list(ways.values())[:2])
    print(f"limit for ppl_bnn: {LIMIT}; {'kept' if error < LIMIT else 'exceeded'}")


def accept_prob(energy_decrease: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(energy_decrease, 0))


def cast(pairs: list, dtype: type) -> list:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), dtype), pairs)


def log_density_on(data: tuple, chunk_size: int | None = None) -> tuple[Callable, Target]:
    target = Target(MODEL, data, {}, chunk_size=chunk_size)
    return target.log_density(target.data.read()), target


def unit_metric(position: dict):
    return make_metric(jax.tree.map(jnp.ones_like, position))


def make_leapfrog(log_density: Callable) -> Callable:
    @jax.jit
    def run(state, momentum):
        metric = unit_metric(state.position)
        return hmc.leapfrog(log_density, metric, state, momentum, STEP_SIZE, NUM_STEPS)

    return run


def trajectories(data: tuple, num_pairs: int) -> list:
    """(state, momentum) at the start and at the end of consecutive trajectories."""
    log_density, target = log_density_on(data)
    position = {
        name: 0.3 * jax.random.normal(jax.random.key(i), shape.shape)
        for i, (name, shape) in enumerate(target.shapes().items())
    }
    scale = jax.tree.map(jnp.ones_like, position)
    position = jax.jit(lambda position: descend(log_density, position, scale, 500))(position)
    leapfrog = make_leapfrog(log_density)
    state = hmc.init(position, log_density)
    pairs = []
    for key in jax.random.split(jax.random.key(0), num_pairs):
        momentum = sample_momentum(key, unit_metric(position), position)
        end, end_momentum = leapfrog(state, momentum)
        pairs.append(((state, momentum), (end, end_momentum)))
        state = end
    return pairs


def rerun(pairs: list, data: tuple) -> list:
    """The trajectories from the same starts, in the precision of the data."""
    log_density, _ = log_density_on(data)
    leapfrog = make_leapfrog(log_density)
    starts = [(hmc.init(state.position, log_density), momentum) for (state, momentum), _ in pairs]
    return [(start, leapfrog(*start)) for start in starts]


def term_by_term(pairs: list, data: tuple, chunk_size: int | None = None) -> np.ndarray:
    log_density, _ = log_density_on(data, chunk_size)

    @jax.jit
    def difference(start, end):
        (first, momentum), (last, end_momentum) = start, end
        gained = jnp.sum(log_density(last.position) - log_density(first.position))
        return gained - kinetic_difference(unit_metric(first.position), end_momentum, momentum)

    return np.array([float(difference(*pair)) for pair in pairs])


def separate_totals(pairs: list, data: tuple) -> np.ndarray:
    """The three differences that Izmailov et al. (2021) form, of sums over everything."""
    x, y = map(jnp.asarray, data)

    @jax.jit
    def totals(side):
        state, momentum = side
        units = x
        log_prior = 0.0
        for i in range(2):
            kernel = state.position[f"net/layers.{i}.kernel"]
            bias = state.position[f"net/layers.{i}.bias"]
            units = jax.nn.swish(units) if i else units
            units = units @ kernel + bias
            log_prior -= 0.5 * (jnp.sum(kernel**2) * len(kernel) + jnp.sum(bias**2))
        row = -0.5 * ((y - units[:, 0]) / NOISE) ** 2 - jnp.log(NOISE * jnp.sqrt(2 * jnp.pi))
        kinetic = kinetic_energy(unit_metric(momentum), momentum)
        return jnp.stack([log_prior, jnp.sum(row), -kinetic])

    return np.array([float(jnp.sum(totals(end) - totals(start))) for start, end in pairs])


def total_energies(pairs: list, data: tuple) -> np.ndarray:
    """What NumPyro's HMC computes, with its own functions."""

    @jax.jit
    def energy(side):
        state, momentum = side
        flat, _ = jax.flatten_util.ravel_pytree(momentum)
        potential = potential_energy(MODEL, data, {}, state.position)
        return potential + euclidean_kinetic_energy(jnp.ones_like(flat), flat)

    return np.array([float(energy(start) - energy(end)) for start, end in pairs])


if __name__ == "__main__":
    main()
