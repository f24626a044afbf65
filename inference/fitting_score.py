"""The predictive density of validation rows, after each epoch of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from scipy.special import logsumexp

from ppl_bnn.draws import Draws
from ppl_bnn.rows import Rows

ROWS_AT_ONCE, DRAWS_AT_ONCE = 512, 16


class Score:
    """Mean log density of rows under the mixture of all draws, with one compiled program."""

    def __init__(self, model: Callable, arguments: tuple[tuple, dict], rows: Rows):
        self.leaves, self.rows = jax.tree.leaves(arguments), rows
        self.num_rows = next(
            len(leaf) for leaf, row in zip(self.leaves, rows.is_row, strict=True) if row
        )

        def of_draw(sample: Any, shared: Any, arguments: tuple[tuple, dict]) -> jax.Array:
            args, kwargs = arguments
            seeded = handlers.seed(handlers.substitute(model, data=sample | shared), 0)
            trace = handlers.trace(seeded).get_trace(*args, **kwargs)
            total = jnp.zeros(())
            for name in rows.seen_by:
                log_prob = trace[name]["fn"].log_prob(trace[name]["value"])
                axis = log_prob.ndim + (rows.sites[name] or 0)
                others = tuple(i for i in range(log_prob.ndim) if i != axis)
                total = total + jnp.sum(log_prob, axis=others)
            return total

        self._of_draws = jax.jit(jax.vmap(of_draw, in_axes=(0, None, None)))

    def __call__(self, draws: Draws) -> float:
        """Negative mean over rows, in nats."""
        samples, shared = draws.flat(), jax.tree.map(jnp.asarray, draws.shared)
        size, num_draws = min(ROWS_AT_ONCE, self.num_rows), draws.num_chains * draws.num_draws
        total = 0.0
        for start in range(0, self.num_rows, size):
            index = np.minimum(np.arange(start, start + size), self.num_rows - 1)
            arguments = self.rows.take(self.leaves, index)
            logs = [
                self._of_draws(
                    {n: v[i : i + DRAWS_AT_ONCE] for n, v in samples.items()}, shared, arguments
                )
                for i in range(0, num_draws, DRAWS_AT_ONCE)
            ]
            log_prob = np.concatenate(logs)[:, : self.num_rows - start]
            total += float(np.sum(logsumexp(log_prob, axis=0) - np.log(num_draws)))
        return -total / self.num_rows
