"""Effective draws of functions: `ppl_bnn.HMC` against NumPyro's NUTS, defaults of both.

The network (one hidden layer of 50, swish, homoscedastic noise, fan-in normal priors), the data,
four chains and the numbers of draws are the same. Both run with vectorised and with parallel
chains (a device for each), and the better of the two counts for each. ESS is the median over test
points of the bulk ESS of the predicted mean; a ratio only says something where both reach the same
test log predictive density.

Seconds of record are those of warm-up (with the warm start of `ppl_bnn.HMC`) and sampling,
without tracing and compilation, which JAX itself times; sampling alone is printed beside.
Gradients are counted for each chain: leapfrog steps of warm-up and sampling, and the optimiser
steps of the warm start. Every run is a process of its own, and the samplers take turns.

    python benchmarks/hmc_vs_nuts.py [--quick] [--data concrete energy yacht] [--rounds 1]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import arviz as az
import jax
import numpy as np
from common import describe_machine, load_uci, print_versions
from numpyro.infer import MCMC, NUTS

import ppl_bnn
from ppl_bnn import metrics, models, priors

NUM_CHAINS = 4
HMC_RUNS = ("hmc vectorized", "hmc parallel")
NUTS_RUNS = ("nuts vectorized", "nuts parallel")
SAMPLERS = (*HMC_RUNS, *NUTS_RUNS)
SAME_DENSITY = 0.03
FLOOR_PER_SECOND, FLOOR_PER_GRADIENT = 2.0, 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["concrete", "energy", "yacht"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--num-warmup", type=int, default=100)
    parser.add_argument("--num-samples", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="30 draws after 30: a smoke test")
    parser.add_argument("--one", choices=SAMPLERS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.num_warmup = options.num_samples = 30
    if options.one:
        print(json.dumps(run(options.one, options.data[0], options)))
        return

    print_versions("ppl_bnn", "numpyro", "jax", "arviz")
    describe_machine()
    print(f"{NUM_CHAINS} chains, {options.num_warmup} + {options.num_samples} transitions each\n")
    print(
        "data      sampler          seconds (sampling)    gradients (sampling)   ESS   ESS/s  "
        "ESS/1000 grad   test log density"
    )
    ratios = [compare(name, options) for name in options.data]
    per_second, per_gradient = np.median(ratios, axis=0)
    print(
        f"\nmedian of {len(ratios)}: {per_second:.2f} times the ESS per second (floor "
        f"{FLOOR_PER_SECOND}), {per_gradient:.2f} times the ESS per gradient (floor "
        f"{FLOOR_PER_GRADIENT})"
    )


def compare(name: str, options: argparse.Namespace) -> tuple[float, float]:
    """Ratios of ESS per second and per gradient, medians over the rounds."""
    rounds = []
    for seed in range(options.rounds):
        order = SAMPLERS if seed % 2 == 0 else SAMPLERS[::-1]
        results = {sampler: start_process(sampler, name, seed, options) for sampler in order}
        for sampler in SAMPLERS:
            print_row(name, sampler, results[sampler])
        rounds.append(results)

    def better(results, samplers, cost):
        return max((results[s] for s in samplers), key=lambda result: result["ess"] / result[cost])

    found, gaps = {}, []
    for seconds, gradients in (
        ("seconds", "gradients"),
        ("sampling_seconds", "sampling_gradients"),
    ):
        ratios = []
        for results in rounds:
            hmc, nuts = (better(results, runs, seconds) for runs in (HMC_RUNS, NUTS_RUNS))
            gain = hmc["ess"] / nuts["ess"]
            ratios.append([gain * nuts[cost] / hmc[cost] for cost in (seconds, gradients)])
            if seconds == "seconds":  # of the two runs that are compared
                gaps.append(hmc["density"] - nuts["density"])
        found[seconds] = np.median(ratios, axis=0)
    gap = abs(np.median(gaps))
    of_record, sampling = found["seconds"], found["sampling_seconds"]
    print(
        f"{name}: HMC ÷ NUTS {of_record[0]:.2f} per second, {of_record[1]:.2f} per gradient "
        f"(sampling alone {sampling[0]:.2f}, {sampling[1]:.2f}); log densities differ by "
        f"{gap:.3f}{'' if gap <= SAME_DENSITY else ', NOT THE SAME'}",
        flush=True,
    )
    return float(of_record[0]), float(of_record[1])


def print_row(name: str, sampler: str, result: dict[str, float]) -> None:
    seconds, gradients = result["seconds"], result["gradients"]
    print(
        f"{name:9} {sampler:16} {seconds:7.1f} ({result['sampling_seconds']:6.1f}) "
        f"{gradients:14,.0f} ({result['sampling_gradients']:9,.0f}) "
        f"{result['ess']:7.0f} {result['ess'] / seconds:7.2f} "
        f"{1000 * result['ess'] / gradients:14.3f} {result['density']:18.4f}",
        flush=True,
    )


def start_process(
    sampler: str, name: str, seed: int, options: argparse.Namespace
) -> dict[str, float]:
    """Result of one run, in a process with a device for each chain if these run in parallel."""
    environment = dict(os.environ)
    if sampler.endswith("parallel"):
        count = f"--xla_force_host_platform_device_count={NUM_CHAINS}"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {count}"
    command = [sys.executable, str(Path(__file__).resolve()), "--one", sampler, "--data", name]
    for option in ("num_warmup", "num_samples"):
        command += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    command += ["--seed", str(seed)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run(sampler: str, name: str, options: argparse.Namespace) -> dict[str, float]:
    x, y, x_test, y_test = load_uci(name)
    net = models.MLP(x.shape[1], (50,), 1, activation="swish")
    model = models.regression(net, priors.fan_in_normal())
    algorithm, chain_method = sampler.split()
    kernel = ppl_bnn.HMC(model) if algorithm == "hmc" else NUTS(model)
    started = kernel.settings.warm_start if algorithm == "hmc" else 0
    mcmc = MCMC(
        kernel,
        num_warmup=options.num_warmup,
        num_samples=options.num_samples,
        num_chains=NUM_CHAINS,
        chain_method=chain_method,
        progress_bar=False,
    )
    clock = CompilationClock()
    fields = ("num_steps",)
    key_warmup, key_run = jax.random.split(jax.random.key(options.seed))
    warmup_seconds = clock.time(
        lambda: mcmc.warmup(key_warmup, x, y, extra_fields=fields, collect_warmup=True),
        lambda: mcmc.last_state,
    )
    warmup_gradients = count_gradients(mcmc) + started * NUM_CHAINS
    sampling_seconds = clock.time(
        lambda: mcmc.run(key_run, x, y, extra_fields=fields), lambda: mcmc.last_state
    )
    sampling_gradients = count_gradients(mcmc)

    functions = ppl_bnn.function_space(mcmc, x_test)
    ess = az.ess(functions, var_names=["mean"], method="bulk")["mean"].values
    log_likelihood = normal_log_density(functions.posterior, y_test)
    return {
        "seconds": warmup_seconds + sampling_seconds,
        "sampling_seconds": sampling_seconds,
        "gradients": warmup_gradients + sampling_gradients,
        "sampling_gradients": sampling_gradients,
        "ess": float(np.median(ess)),
        "density": metrics.log_predictive_density(log_likelihood),
    }


def count_gradients(mcmc: MCMC) -> int:
    return int(np.asarray(mcmc.get_extra_fields()["num_steps"]).sum(dtype=np.int64))


def normal_log_density(posterior, y: np.ndarray) -> np.ndarray:
    """Of each draw at each point, shape (chain, draw, point), in units of standardised y."""
    mean, log_scale = posterior["mean"].values, posterior["log_scale"].values[..., None]
    return -0.5 * ((y - mean) / np.exp(log_scale)) ** 2 - log_scale - 0.5 * np.log(2 * np.pi)


class CompilationClock:
    """Wall time of a call without the time in which JAX traced, lowered or compiled."""

    def __init__(self):
        self.spans: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, duration: float, **_) -> None:
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            self.spans.append((now - duration, now))

    def time(self, call: Callable, result: Callable) -> float:
        self.spans.clear()
        start = time.perf_counter()
        call()
        jax.block_until_ready(result())
        elapsed = time.perf_counter() - start
        # spans nest, since what is traced may itself trace and compile
        compiling, last = 0.0, start
        for begin, end in sorted(self.spans):
            compiling += max(end, last) - max(begin, last)
            last = max(end, last)
        return elapsed - compiling


if __name__ == "__main__":
    main()
