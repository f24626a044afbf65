"""Normalisation without coupling between rows, and thresholded activations."""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from ppl_bnn.arguments import check_choice
from ppl_bnn.models.options import check_sizes

NORMS = ("frn", "group", "none", "batch")

Norm: TypeAlias = "FilterResponseNorm | nnx.GroupNorm | nnx.BatchNorm | None"


class ThresholdedLinearUnit(nnx.Module):
    """``max(x, tau)`` with a learnt threshold for each channel (Singh and Krishnan, 2020).

    Its parameter is ``tau`` of shape (channels,), at first 0.

    Parameters
    ----------
    num_features : int
        Number of channels, on the last axis.

    References
    ----------
    Singh and Krishnan (2020), *Filter response normalization layer*, section 3.2.
    """

    def __init__(self, num_features: int):
        check_sizes(num_features=num_features)
        self.tau = nnx.Param(jnp.zeros(num_features))

    def __call__(self, x: Float[Array, "*batch C"]) -> Float[Array, "*batch C"]:
        """Give what exceeds the threshold, and the threshold elsewhere."""
        return jnp.maximum(x, self.tau[...])


class FilterResponseNorm(nnx.Module):
    """``gamma * x / sqrt(nu2 + epsilon) + beta``, with ``nu2`` the mean square over space.

    Each row and channel is normalised by itself; where there is one cell of space alone, little but
    the sign of x is left of it. The parameters are ``gamma`` (at first 1) and
    ``beta`` (at first 0) of shape (channels,), and ``threshold.tau`` if there is a threshold.

    Parameters
    ----------
    num_features : int
        Number of channels, on the last axis.
    threshold : bool
        Whether a `ThresholdedLinearUnit` follows, as in the paper's networks.
    epsilon : float
        Keeps the quotient finite where a channel is zero everywhere.

    References
    ----------
    Singh and Krishnan (2020), *Filter response normalization layer*, equations 1 to 3.
    """

    def __init__(self, num_features: int, *, threshold: bool = False, epsilon: float = 1e-6):
        check_sizes(num_features=num_features)
        self.gamma = nnx.Param(jnp.ones(num_features))
        self.beta = nnx.Param(jnp.zeros(num_features))
        self.threshold = ThresholdedLinearUnit(num_features) if threshold else nnx.data(None)
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "N *space C"]) -> Float[Array, "N *space C"]:
        """Normalise over all axes between the first and the last."""
        if x.ndim < 3:
            raise ValueError(
                f"x has shape {x.shape}, but filter response normalisation takes means over space: "
                "it needs at least one axis between rows and channels"
            )
        mean_square = jnp.mean(x * x, axis=tuple(range(1, x.ndim - 1)), keepdims=True)
        y = self.gamma[...] * x * jax.lax.rsqrt(mean_square + self.epsilon) + self.beta[...]
        return y if self.threshold is None else self.threshold(y)


def make_norm(norm: str, num_features: int, rngs: nnx.Rngs) -> Norm:
    """Give a normalisation layer by name.

    Parameters
    ----------
    norm : {"frn", "group", "none", "batch"}
        Filter response normalisation with its threshold, which has a kink; group normalisation
        (Wu and He, 2018) with 16 channels a group, or as many of these as divide them; nothing; or
        batch normalisation, for deterministic baselines alone: it couples the rows, and
        `ppl_bnn.random_module` refuses it.
    num_features : int
        Number of channels, on the last axis.
    rngs : flax.nnx.Rngs
        Keys.

    Raises
    ------
    ValueError
        If there is no such name.
    """
    check_choice("norm", norm, NORMS)
    if norm == "frn":
        return FilterResponseNorm(num_features, threshold=True)
    if norm == "group":
        size = math.gcd(16, num_features)
        return nnx.GroupNorm(
            num_features, num_groups=None, group_size=size, use_fast_variance=False, rngs=rngs
        )
    return nnx.BatchNorm(num_features, rngs=rngs) if norm == "batch" else None


def normalize(layer: Norm, x: jax.Array) -> jax.Array:
    """Apply what `make_norm` gave."""
    return x if layer is None else layer(x)
