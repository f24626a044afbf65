"""Gradients of the potential energy from a minibatch: plain, or as a difference to an anchor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Tree = dict[str, jax.Array]
# position, batch, temperature of the Jacobian -> log density
BatchLogDensity = Callable[[Tree, Any, jax.Array | float], jax.Array]
Gradient = Callable[[Tree], tuple[jax.Array, Tree]]  # position -> potential, its gradient

GRADIENTS = ("plain", "control_variates", "svrg")


class Anchor(NamedTuple):
    """A position at which potential and gradient over all rows are known, without Jacobian."""

    position: Tree
    potential: jax.Array  # shape ()
    gradient: Tree


def at_anchor(position: Tree, all_rows: Gradient) -> Anchor:
    """Anchor at a position, at the cost of one pass over all rows.

    `all_rows` gives the potential over all rows and its gradient, without Jacobian.
    """
    return Anchor(position, *all_rows(position))


def plain(log_density: BatchLogDensity, batch: Any, temperature: jax.Array | float) -> Gradient:
    """The potential and its gradient, estimated from one batch."""
    return jax.value_and_grad(lambda position: -log_density(position, batch, temperature))


def against_anchor(
    log_density: BatchLogDensity, batch: Any, temperature: jax.Array | float, anchor: Anchor
) -> Gradient:
    """What `plain` gives, less its error at the anchor, where the truth is known.

    Its variance grows with the squared distance from the anchor, and is zero there. With an
    anchor that stays at a mode these are control variates (Baker, Fearnhead, Fox & Nemeth 2019,
    "Control variates for stochastic gradient MCMC"); with one that follows the chain it is SVRG
    (Dubey et al. 2016, "Variance reduction in stochastic gradient Langevin dynamics"). The Jacobian
    needs no rows: it is exact at the position, and left out at the anchor.
    """
    here = plain(log_density, batch, temperature)
    potential_there, gradient_there = plain(log_density, batch, 0.0)(anchor.position)

    def gradient(position: Tree) -> tuple[jax.Array, Tree]:
        potential, gradient = here(position)
        corrected = jax.tree.map(
            lambda full, new, old: full + (new - old), anchor.gradient, gradient, gradient_there
        )
        return anchor.potential + (potential - potential_there), corrected

    return gradient
