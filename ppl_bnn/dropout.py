"""The law of dropout's multipliers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints


class Dropout(dist.Distribution):
    """Zero with probability `rate`, else 1 / (1 - rate), so that the mean is one.

    Parameters
    ----------
    rate : float
        In [0, 1).
    """

    support = constraints.nonnegative
    pytree_aux_fields = ("rate",)

    def __init__(self, rate: float, *, validate_args: bool | None = None):
        self.rate = rate
        super().__init__(batch_shape=(), event_shape=(), validate_args=validate_args)

    def sample(self, key: jax.Array | None, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws of shape `sample_shape`."""
        assert key is not None
        is_kept = jax.random.bernoulli(key, 1 - self.rate, sample_shape)
        return is_kept / jnp.asarray(1 - self.rate, jnp.result_type(float))
