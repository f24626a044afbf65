"""Bayesian neural networks on NumPyro: full-batch HMC, and convergence in function space."""

from ppl_bnn import datasets, inference, metrics, models, priors, schedules
from ppl_bnn.arviz_export import to_arviz
from ppl_bnn.diagnose import diagnose
from ppl_bnn.draws import as_draws
from ppl_bnn.function_space import function_space
from ppl_bnn.inference import (
    HMC,
    SGHMC,
    SGLD,
    SGMCMC,
    SGNHT,
    AutoRank1,
    Fit,
    Rank1ELBO,
    ReplicaExchangeSGLD,
    fit,
)
from ppl_bnn.likelihood import full_batch, mini_batch
from ppl_bnn.mesh import mesh
from ppl_bnn.predict import predict
from ppl_bnn.random_module import initial_weights, random_module
from ppl_bnn.rhat import rhat
from ppl_bnn.row_source import RowSource
from ppl_bnn.trajectory import num_leapfrog_steps, trajectory_length

__version__ = "0.1.0.dev0"

__all__ = [
    "HMC",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "SGNHT",
    "AutoRank1",
    "Fit",
    "Rank1ELBO",
    "ReplicaExchangeSGLD",
    "RowSource",
    "as_draws",
    "datasets",
    "diagnose",
    "fit",
    "full_batch",
    "function_space",
    "inference",
    "initial_weights",
    "mesh",
    "metrics",
    "mini_batch",
    "models",
    "num_leapfrog_steps",
    "predict",
    "priors",
    "random_module",
    "rhat",
    "schedules",
    "to_arviz",
    "trajectory_length",
]
