"""Ready model functions for numbers: a network, a prior over its weights, and a noise model."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Shaped

from ppl_bnn.models.outputs import (
    AnyArray,
    Inputs,
    check_targets,
    num_rows,
    outputs_of,
    squeeze_one,
)
from ppl_bnn.priors import Prior, expand_to_event
from ppl_bnn.priors.base import check_positive_or_prior

Number: TypeAlias = float | int


def regression(
    net: Any,
    prior: Prior,
    noise: str | Number | dist.Distribution = "homoscedastic",
    *,
    noise_floor: Number = 1e-4,
    df: Number | dist.Distribution | None = None,
) -> "Regression":
    """Give a regression model with Gaussian or Student-t noise.

    Parameters
    ----------
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        Gives one output for each target: the mean. With heteroscedastic noise it gives twice as
        many: all means, then one value s for each target.
    prior : Distribution, dict or callable
        As in `ppl_bnn.random_module`.
    noise : "homoscedastic", "heteroscedastic", float or Distribution
        What is known of the scale of the noise, in units of y: its standard deviation if it is
        Gaussian. "homoscedastic": one for all data, with prior ``HalfNormal(1)`` (suits
        standardised targets); a distribution is another prior for the same; "heteroscedastic":
        ``softplus(s) + noise_floor``, different for each row (Izmailov et al., 2021, "What are
        Bayesian neural network posteriors really like?", without the floor); a float is its known
        value.
    noise_floor : float
        Least scale of heteroscedastic noise, in units of y. It keeps the density finite where
        softplus underflows; 0 is allowed.
    df : float or Distribution, optional
        Degrees of freedom of Student-t noise, for targets with outliers, or a prior for them
        (``Gamma(2, 0.1)`` is a usual one: Juárez & Steel, 2010, "Model-based clustering of
        non-Gaussian panel data based on skew-t distributions"). The default is Gaussian noise.

    Returns
    -------
    callable
        ``model(x, y=None)``, with x of shape (N, ...), or a dictionary (or NamedTuple) of such for
        a network of several inputs, by the names of its arguments; and y of shape (N,), or (N,
        targets) for more than one target. Its sites are ``net/...``, ``noise`` (for homoscedastic
        noise, one for each target), ``df`` (if it has a prior) and the observed ``y``, in the plate
        ``data``.

    Raises
    ------
    ValueError
        If `noise` is another word, a scale or `df` is not positive, or its prior allows negative
        values; and in a call, if the number of outputs does not suit `noise` or y.
    """
    kinds = ("homoscedastic", "heteroscedastic")
    if isinstance(noise, str):
        if noise not in kinds:
            raise ValueError(f"noise must be one of {kinds}, a float or a prior, got {noise!r}")
    else:
        check_positive_or_prior("noise", noise, "a standard deviation", "dist.HalfNormal(1)")
    if not 0 <= noise_floor < np.inf:
        raise ValueError(f"noise_floor must be finite and not negative, got {noise_floor}")
    if df is not None:
        check_positive_or_prior("df", df, "a number of degrees of freedom", "dist.Gamma(2, 0.1)")
    return Regression(net, prior, noise, noise_floor, df)


def count_regression(net: Any, prior: Prior) -> "CountRegression":
    """Give a model of counts: Poisson with a rate that is the exponential of the network's output.

    Parameters
    ----------
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        Gives one output, the log rate, for each target.
    prior : Distribution, dict or callable
        As in `ppl_bnn.random_module`. A log rate with a standard deviation of 3 already spans
        rates from 1/400 to 400: look at `ppl_bnn.priors.check`.

    Returns
    -------
    callable
        ``model(x, y=None)``, with x as for `regression` and y integers of shape (N,), or
        (N, targets). Its sites are ``net/...`` and the observed ``y``, in the plate ``data``. In a
        call it raises a ValueError if y has another shape than the rates.
    """
    return CountRegression(net, prior)


# Compared by identity, since networks and priors hold arrays.
@dataclass(frozen=True, eq=False)
class Regression:
    """What `regression` returns."""

    net: Any
    prior: Prior
    noise: str | Number | dist.Distribution
    noise_floor: Number
    df: Number | dist.Distribution | None

    def __call__(
        self, x: Inputs, y: Shaped[AnyArray, "..."] | None = None
    ) -> Shaped[AnyArray, "N *targets"]:
        """Sample the weights, the noise and y."""
        outputs = outputs_of(self.net, self.prior, x)
        heteroscedastic = isinstance(self.noise, str) and self.noise == "heteroscedastic"
        if heteroscedastic and outputs.shape[1] % 2:
            raise ValueError(
                "heteroscedastic noise takes two outputs of the network for each target, its "
                f"mean and its noise, but net gives {outputs.shape[1]}; build it with "
                "out_features=2 for one target"
            )
        parts = jnp.split(outputs, 2, axis=1) if heteroscedastic else [outputs]
        mean, *others = map(squeeze_one, parts)
        check_targets(mean, y, "means")

        noise: Any
        if heteroscedastic:
            noise = jax.nn.softplus(others[0]) + self.noise_floor
        elif isinstance(self.noise, str | dist.Distribution):
            noise_prior = dist.HalfNormal(1.0) if isinstance(self.noise, str) else self.noise
            noise = numpyro.sample("noise", expand_to_event(noise_prior, mean.shape[1:], "noise"))
        else:
            noise = self.noise
        distribution = dist.Normal(mean, noise) if self.df is None else self._student_t(mean, noise)
        with numpyro.plate("data", num_rows(x)):
            return numpyro.sample("y", distribution.to_event(mean.ndim - 1), obs=y)

    def _student_t(self, mean: jax.Array, noise: Any) -> dist.Distribution:
        df: Any = self.df
        if isinstance(df, dist.Distribution):
            df = numpyro.sample("df", expand_to_event(df, (), "df"))
        return dist.StudentT(df, mean, noise)


@dataclass(frozen=True, eq=False)
class CountRegression:
    """What `count_regression` returns."""

    net: Any
    prior: Prior

    def __call__(
        self, x: Inputs, y: Shaped[AnyArray, "..."] | None = None
    ) -> Shaped[AnyArray, "N *targets"]:
        """Sample the weights and y."""
        log_rate = squeeze_one(outputs_of(self.net, self.prior, x))
        check_targets(log_rate, y, "rates")
        distribution = dist.Poisson(jnp.exp(log_rate)).to_event(log_rate.ndim - 1)
        with numpyro.plate("data", num_rows(x)):
            return numpyro.sample("y", distribution, obs=y)
