"""Prior standard deviations in unconstrained coordinates, where a sampler moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to

from ppl_bnn.density import is_real
from ppl_bnn.rows import concretely

NUM_DRAWS = 1000
FEWEST_DRAWS = 50
MOST_NUMBERS = 2**28
LARGEST_SHARE = 0.2

Tree = dict[str, jax.Array]
Scales = dict[str, np.ndarray]


def prior_scales(model: Callable, names: Sequence[str], args: tuple, kwargs: dict) -> Scales:
    """Standard deviation of each latent site under the prior, in unconstrained coordinates.

    Parameters
    ----------
    model : callable
        A NumPyro model.
    names : sequence of str
        Its latent sites.
    args, kwargs
        What it is called with; a few rows do.

    Returns
    -------
    dict of arrays
        Shaped as the unconstrained sites; infinite where the prior has no finite variance.

    Notes
    -----
    In closed form where a site lives on the real line and does not depend on other sites. Else
    from 1,000 draws of the prior: the variance of the conditional mean plus the mean of the
    conditional variance. Where one draw in a thousand makes up more than a fifth of the latter (a
    horseshoe), the mean does not settle and the variance counts as infinite.
    """

    def moments(key: jax.Array) -> tuple[Tree, Tree]:
        return _conditional_moments(model, names, args, kwargs, key)

    # sites with the same moments in two draws of the prior depend on no other site
    means, variances = _run(jax.vmap(moments), seed=1, num_keys=2)
    scales, drawn = {}, []
    for name in names:
        # equal_nan: the mean and variance of a Cauchy are NaN or infinite
        if all(np.array_equal(m[name][0], m[name][1], equal_nan=True) for m in (means, variances)):
            variance = variances[name][0]
            scales[name] = np.asarray(np.sqrt(np.where(np.isfinite(variance), variance, np.inf)))
        else:
            drawn.append(name)
    return scales | (_marginal_scales(moments, drawn) if drawn else {})


def prior_widths(model: Callable, names: Sequence[str], args: tuple, kwargs: dict) -> Scales:
    """Distance of the prior's quartiles, divided by that of a standard normal's.

    A standard deviation's stand-in for priors that have none. Of large sites there are fewer draws,
    and they are taken in groups, so that at most about 1 GiB of draws is held at once.
    """

    def draw(key: jax.Array) -> Tree:
        return _draw(model, names, args, kwargs, key)[1]

    sizes = {name: x.size for name, x in jax.eval_shape(draw, jax.random.key(0)).items()}
    num_draws = min(NUM_DRAWS, max(FEWEST_DRAWS, MOST_NUMBERS // max(sizes.values())))
    groups: list[list[str]] = [[]]
    for name in names:
        if groups[-1] and num_draws * sum(sizes[n] for n in [*groups[-1], name]) > MOST_NUMBERS:
            groups.append([])
        groups[-1].append(name)
    widths: Scales = {}
    for group in groups:
        draws = _run(
            jax.vmap(lambda key, group=group: {name: draw(key)[name] for name in group}),
            seed=0,
            num_keys=num_draws,
        )
        for name, x in draws.items():
            low, high = np.quantile(x, [0.25, 0.75], axis=0)
            widths[name] = np.asarray((high - low) / 1.349)
    return widths


def _run(fn: Callable, *, seed: int, num_keys: int) -> Any:
    """``fn(keys)`` as NumPy arrays, also while a caller's program is traced."""
    with concretely():
        keys = jax.random.split(jax.random.key(seed), num_keys)
        return jax.device_get(jax.jit(fn)(keys))


def _draw(model, names, args, kwargs, key):
    """Distributions and unconstrained values of one draw of the prior.

    Under `jit` the network is not evaluated, for what is not asked for is not computed.
    """
    with handlers.block():
        trace = handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs)
    fns = {name: trace[name]["fn"] for name in names}
    return fns, {name: biject_to(fns[name].support).inv(trace[name]["value"]) for name in names}


def _conditional_moments(model, names, args, kwargs, key) -> tuple[Tree, Tree]:
    """Mean and variance of each site given those before it; a drawn value is its own mean."""
    fns, values = _draw(model, names, args, kwargs, key)
    means, variances = {}, {}
    for name, value in values.items():
        closed = is_real(fns[name].support)
        mean, variance = (fns[name].mean, fns[name].variance) if closed else (value, 0.0)
        means[name] = jnp.broadcast_to(jnp.asarray(mean, value.dtype), value.shape)
        variances[name] = jnp.broadcast_to(jnp.asarray(variance, value.dtype), value.shape)
    return means, variances


def _marginal_scales(moments: Callable, names: Sequence[str]) -> Scales:
    """Marginal standard deviations, by the law of total variance over draws of the prior."""

    def run(keys):
        origin, _ = moments(keys[0])

        def add(carry, key):
            total, square, variance, largest = carry
            means, variances = moments(key)
            means = jax.tree.map(jnp.subtract, means, origin)
            return (
                jax.tree.map(jnp.add, total, means),
                jax.tree.map(lambda s, m: s + m * m, square, means),
                jax.tree.map(jnp.add, variance, variances),
                jax.tree.map(jnp.maximum, largest, variances),
            ), None

        zeros = jax.tree.map(jnp.zeros_like, origin)
        return jax.lax.scan(add, (zeros, zeros, zeros, zeros), keys)[0]

    total, square, variance, largest = _run(run, seed=0, num_keys=NUM_DRAWS)
    scales = {}
    for name in names:
        between = square[name] / NUM_DRAWS - (total[name] / NUM_DRAWS) ** 2
        scale = np.sqrt(np.maximum(between, 0.0) + variance[name] / NUM_DRAWS)
        heavy = (largest[name] > LARGEST_SHARE * variance[name]) & (variance[name] > 0)
        scales[name] = np.where(np.isfinite(scale) & ~heavy, scale, np.inf)
    return scales
