"""Stochastic gradients against long HMC: predictions of real data, extrapolated to step size 0.

Two runs, at h and h / 2, tell the bias that is linear in h; what is left must be small against the
posterior. SGHMC's momentum keeps the same share in each step, whatever h, for with a fixed friction
the bias by the gradient's noise would go with the root of h.
"""

import os
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC
from numpyro.infer.util import potential_energy

import ppl_bnn
from ppl_bnn import models, priors

pytestmark = pytest.mark.slow

CLOSE = 0.15  # posterior standard deviations, on 95 % of the test points
PRECISE = 0.05  # Monte Carlo standard error, likewise
SVRG = {"gradient": "svrg", "refresh_interval": 50}
METHODS = {
    "SGLD-CV": (ppl_bnn.SGLD, {"gradient": "control_variates"}),
    "SGHMC": (ppl_bnn.SGHMC, {"momentum_decay": 0.9, **SVRG}),
    "SGNHT": (ppl_bnn.SGNHT, {"diffusion": 20.0, **SVRG}),
}


@dataclass(frozen=True)
class Case:
    curvature: float  # the largest, of the potential
    step: float  # the larger of the two, in units of 1 / curvature
    num_chains: int
    steps_per_draw: dict[str, int]  # at the larger step


CASES = {
    "logistic regression, pima": Case(250.0, 0.1, 32, {"SGLD-CV": 100, "SGHMC": 50, "SGNHT": 50}),
    "MLP-10, concrete": Case(39_000.0, 0.4, 64, {"SGLD-CV": 8000, "SGHMC": 500, "SGNHT": 500}),
}
study = pytest.mark.skipif(
    "PPL_BNN_STUDIES" not in os.environ, reason="takes minutes; set PPL_BNN_STUDIES=1 to run it"
)


class Moments(NamedTuple):
    """Of predictions, for each test point, with their Monte Carlo errors."""

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray


def moments(mcmc, x):
    """Chains are independent, so the spread of their own moments gives the errors."""
    posterior = ppl_bnn.function_space(mcmc, x)["posterior"]
    name = "mean" if "mean" in posterior else "log_probs"
    functions = np.asarray(posterior[name].values, float)
    functions = np.exp(functions[..., 1]) if name == "log_probs" else functions
    root = np.sqrt(len(functions))
    means = functions.mean(axis=1)
    mean = means.mean(axis=0)
    variances = ((functions - mean) ** 2).mean(axis=1)
    sd = np.sqrt(variances.mean(axis=0))
    return Moments(
        mean, sd, means.std(0, ddof=1) / root, variances.std(0, ddof=1) / root / (2 * sd)
    )


def configurational_temperature(mcmc, model, data):
    """Mean of (theta - chain's mean) . gradient over the number of parameters, T in theory.

    For each chain, shape (chains,); gradients are over all rows.
    """
    draws = mcmc.get_samples(group_by_chain=True)  # all sites are real numbers

    def product(position, centre):
        slope = jax.grad(lambda z: potential_energy(model, data, {}, z))(position)
        return sum(jnp.sum((position[name] - centre[name]) * slope[name]) for name in position)

    def of_chain(chain):
        centre = jax.tree.map(lambda values: values.mean(axis=0), chain)
        return jax.vmap(lambda position: product(position, centre))(chain).mean()

    size = sum(values[0, 0].size for values in draws.values())
    return np.asarray(jax.lax.map(jax.jit(of_chain), draws)) / size


def on_most_points(values):
    return np.quantile(np.abs(values), 0.95)


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


@pytest.fixture(
    scope="module",
    params=[name if "pima" in name else pytest.param(name, marks=study) for name in CASES],
)
def problem(request, uci, tabular):
    """Case, model, training data, test inputs, and moments by HMC."""
    if "pima" in request.param:
        x, y = tabular("pima-indians-diabetes")
        model, data, x_test = logistic, (x[:600], y[:600]), x[600:]
    else:
        x, y, x_test, _ = uci("concrete")
        centre, scale = x.mean(0), x.std(0)
        x, x_test = ((part - centre) / scale for part in (x, x_test))
        data = x.astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32)
        x_test = x_test.astype(np.float32)
        model = models.regression(models.MLP(8, (10,), 1), priors.fan_in_normal(), noise=0.5)
    mcmc = MCMC(
        ppl_bnn.HMC(model),
        num_warmup=300,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), *data)
    assert ppl_bnn.rhat(ppl_bnn.function_space(mcmc, x_test)).max < 1.02
    exact = moments(mcmc, x_test)
    for error in (exact.mean_error, exact.sd_error):
        assert on_most_points(error / exact.sd) < PRECISE
    return CASES[request.param], model, data, x_test, exact


@pytest.mark.parametrize("method", METHODS)
def test_predictions_agree_with_hmc(problem, method):
    case, model, data, x_test, exact = problem
    kernel, own = METHODS[method]
    found, temperatures = [], []
    for divisor in (1, 2):
        mcmc = MCMC(
            kernel(
                model,
                step_size=case.step / divisor / case.curvature,
                batch_size=100,
                steps_per_draw=case.steps_per_draw[method] * divisor,
                **own,
            ),
            num_warmup=40,
            num_samples=200,
            num_chains=case.num_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(2), *data)
        found.append(moments(mcmc, x_test))
        temperatures.append([configurational_temperature(mcmc, model, data)])
        if method != "SGLD-CV":
            kinetic = mcmc.get_extra_fields()["info.kinetic_temperature"]
            temperatures[-1].append(np.asarray(kinetic).reshape(case.num_chains, -1).mean(axis=1))
    coarse, fine = found
    for value, error in (("mean", "mean_error"), ("sd", "sd_error")):
        at_zero = 2 * getattr(fine, value) - getattr(coarse, value)
        noise = np.hypot(2 * getattr(fine, error), getattr(coarse, error))
        distance = on_most_points((at_zero - getattr(exact, value)) / exact.sd)
        print(method, value, distance, on_most_points(noise / exact.sd))
        assert on_most_points(noise / exact.sd) < PRECISE
        assert distance < CLOSE
    coarse, fine = (np.array(found) for found in temperatures)  # of shape (kinds, chains)
    at_zero = 2 * fine.mean(axis=1) - coarse.mean(axis=1)
    spread = np.hypot(2 * fine.std(axis=1, ddof=1), coarse.std(axis=1, ddof=1))
    error = spread / np.sqrt(case.num_chains)
    print(method, "temperatures", at_zero, error)
    assert (error < PRECISE).all()
    assert (np.abs(at_zero - 1) < 0.05 + 2 * error).all()
