"""Bayesian neural networks on NumPyro, with exact full-batch HMC and convergence in function space."""

from ppl_bnn import inference, metrics, models, priors
from ppl_bnn.inference.hmc_kernel import HMC
from ppl_bnn.likelihood import full_batch, mini_batch
from ppl_bnn.mesh import mesh
from ppl_bnn.random_module import initial_weights, random_module
from ppl_bnn.trajectory import num_leapfrog_steps, trajectory_length

__version__ = "0.1.0.dev0"

__all__ = [
    "HMC",
    "full_batch",
    "inference",
    "initial_weights",
    "mesh",
    "metrics",
    "mini_batch",
    "models",
    "num_leapfrog_steps",
    "priors",
    "random_module",
    "trajectory_length",
]
