"""Ready model functions: a network, a prior over its weights, and a likelihood."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Shaped

from ppl_bnn.priors import Prior, expand_to_event
from ppl_bnn.random_module import random_module

AnyArray: TypeAlias = Array | np.ndarray


def regression(
    net: Any,
    prior: Prior,
    noise: str | float | int | dist.Distribution = "homoscedastic",
    *,
    noise_floor: float | int = 1e-4,
) -> "Regression":
    """Give a regression model with Gaussian noise.

    Parameters
    ----------
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        Gives one output for each target: the mean. With heteroscedastic noise it gives twice as
        many: all means, then one value s for each target.
    prior : Distribution, dict or callable
        As in `ppl_bnn.random_module`.
    noise : "homoscedastic", "heteroscedastic", float or Distribution
        What is known of the standard deviation of the noise, in units of y. "homoscedastic": one
        for all data, with prior ``HalfNormal(1)`` (suits standardised targets); a distribution is
        another prior for the same; "heteroscedastic": ``softplus(s) + noise_floor``, different for
        each row (Izmailov et al., 2021, "What are Bayesian neural network posteriors really
        like?", without the floor); a float is its known value.
    noise_floor : float
        Least standard deviation of heteroscedastic noise, in units of y. It keeps the density
        finite where softplus underflows; 0 is allowed.

    Returns
    -------
    callable
        ``model(x, y=None)``, with x of shape (N, features) and y of shape (N,), or (N, targets)
        for more than one target. Its sites are ``net/...``, ``noise`` (for homoscedastic noise,
        one for each target) and the observed ``y``, in the plate ``data``.

    Raises
    ------
    ValueError
        If `noise` is another word, a standard deviation is not positive, or its prior allows
        negative values; and in a call, if the number of outputs does not suit `noise` or y.
    """
    kinds = ("homoscedastic", "heteroscedastic")
    if isinstance(noise, str):
        if noise not in kinds:
            raise ValueError(f"noise must be one of {kinds}, a float or a prior, got {noise!r}")
    elif isinstance(noise, dist.Distribution):
        if noise.support is dist.constraints.real:
            raise ValueError(
                f"noise is a standard deviation, but its prior {type(noise).__name__} allows "
                "negative values; take, for instance, dist.HalfNormal(1)"
            )
    elif not noise > 0:
        raise ValueError(f"noise must be a positive standard deviation, got {noise}")
    if noise_floor < 0:
        raise ValueError(f"noise_floor must not be negative, got {noise_floor}")
    return Regression(net, prior, noise, noise_floor)


def classification(net: Any, prior: Prior) -> "Classification":
    """Give a classification model.

    Parameters
    ----------
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        Gives one logit for each class; two classes take two.
    prior : Distribution, dict or callable
        As in `ppl_bnn.random_module`.

    Returns
    -------
    callable
        ``model(x, y=None)``, with x of shape (N, features) and y integers of shape (N,), from 0 to
        the number of classes less one. Its sites are ``net/...`` and the observed ``y``, in the
        plate ``data``. In a call it raises a ValueError if `net` gives fewer than two outputs or y
        has another shape.
    """
    return Classification(net, prior)


# Compared by identity, since networks and priors hold arrays.
@dataclass(frozen=True, eq=False)
class Regression:
    """What `regression` returns."""

    net: Any
    prior: Prior
    noise: str | float | int | dist.Distribution
    noise_floor: float | int

    def __call__(
        self, x: Shaped[AnyArray, "N *features"], y: Shaped[AnyArray, "..."] | None = None
    ) -> Shaped[AnyArray, "N *targets"]:
        """Sample the weights, the noise and y."""
        outputs = random_module("net", self.net, self.prior)(x)
        _check_rows(outputs, x)
        heteroscedastic = isinstance(self.noise, str) and self.noise == "heteroscedastic"
        if heteroscedastic:
            if outputs.shape[1] % 2:
                raise ValueError(
                    "heteroscedastic noise takes two outputs of the network for each target, its "
                    f"mean and its noise, but net gives {outputs.shape[1]}; build it with "
                    "out_features=2 for one target"
                )
        parts = jnp.split(outputs, 2, axis=1) if heteroscedastic else [outputs]
        if parts[0].shape[1] == 1:
            parts = [part[:, 0] for part in parts]
        mean = parts[0]
        _check_targets(mean, y)

        noise: Any
        if heteroscedastic:
            noise = jax.nn.softplus(parts[1]) + self.noise_floor
        elif isinstance(self.noise, str | dist.Distribution):
            noise_prior = dist.HalfNormal(1.0) if isinstance(self.noise, str) else self.noise
            noise = numpyro.sample("noise", expand_to_event(noise_prior, mean.shape[1:], "noise"))
        else:
            noise = self.noise
        with numpyro.plate("data", x.shape[0]):
            return numpyro.sample("y", dist.Normal(mean, noise).to_event(mean.ndim - 1), obs=y)


@dataclass(frozen=True, eq=False)
class Classification:
    """What `classification` returns."""

    net: Any
    prior: Prior

    def __call__(
        self, x: Shaped[AnyArray, "N *features"], y: Shaped[AnyArray, "..."] | None = None
    ) -> Shaped[AnyArray, " N"]:
        """Sample the weights and y."""
        logits = random_module("net", self.net, self.prior)(x)
        _check_rows(logits, x)
        if logits.shape[1] < 2:
            raise ValueError(
                "classification takes one output of the network for each class, at least 2, but "
                f"net gives {logits.shape[1]}; build it with out_features=2 for two classes"
            )
        if y is not None and y.shape != logits.shape[:1]:
            raise ValueError(
                f"y has shape {y.shape}, expected {logits.shape[:1]}: one integer label for each "
                "row of x (not one-hot)"
            )
        with numpyro.plate("data", x.shape[0]):
            return numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def _check_rows(outputs: jax.Array, x: AnyArray) -> None:
    if outputs.ndim != 2 or outputs.shape[0] != x.shape[0]:
        raise ValueError(
            f"net gives shape {outputs.shape} for x of shape {x.shape}, expected "
            f"({x.shape[0]}, outputs): keep the last axis, even for one output"
        )


def _check_targets(mean: jax.Array, y: AnyArray | None) -> None:
    if y is None or y.shape == mean.shape:
        return
    if y.shape == (*mean.shape, 1):
        cure = "pass y[:, 0]"
    else:
        cure = "check out_features of the network and the number of rows of y"
    raise ValueError(
        f"y has shape {y.shape}, but the means that net gives have shape {mean.shape} (the rows of "
        f"x, and the targets if there are several); {cure}"
    )
