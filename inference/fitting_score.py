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
from ppl_bnn.inference.rank1_rows import by_row
from ppl_bnn.rows import Rows

ROWS_AT_ONCE, DRAWS_AT_ONCE = 512, 16


class Score:
    """Mean log density of rows under the mixture of all draws, with one compiled program."""

    def __init__(self, model: Callable, arguments: tuple[tuple, dict], rows: Rows):
        self.leaves, self.rows = jax.tree.leaves(arguments), rows
        self.num_rows = rows.num_rows

        def of_draw(sample: Any, shared: Any, row_leaves: list[jax.Array]) -> jax.Array:
            args, kwargs = rows.join(row_leaves, rows.split(self.leaves)[1])
            seeded = handlers.seed(handlers.substitute(model, data=sample | shared), 0)
            trace = handlers.trace(seeded).get_trace(*args, **kwargs)
            axes = {name: axis for name, axis in rows.sites.items() if axis is not None}
            return sum((by_row(trace[n], axis)[0] for n, axis in axes.items()), jnp.zeros(()))

        self._of_draws = jax.jit(jax.vmap(of_draw, in_axes=(0, None, None)))

    def __call__(self, draws: Draws) -> float:
        """Negative mean over rows, in nats."""
        samples, shared = draws.flat(), jax.tree.map(jnp.asarray, draws.shared)
        size, num_draws = min(ROWS_AT_ONCE, self.num_rows), draws.num_chains * draws.num_draws
        total = 0.0
        for start in range(0, self.num_rows, size):
            index = np.minimum(np.arange(start, start + size), self.num_rows - 1)
            row_leaves = [leaf[index] for leaf in self.rows.split(self.leaves)[0]]
            logs = [
                self._of_draws(
                    {n: v[i : i + DRAWS_AT_ONCE] for n, v in samples.items()}, shared, row_leaves
                )
                for i in range(0, num_draws, DRAWS_AT_ONCE)
            ]
            log_prob = np.concatenate(logs)[:, : self.num_rows - start]
            total += float(np.sum(logsumexp(log_prob, axis=0) - np.log(num_draws)))
        return -total / self.num_rows
