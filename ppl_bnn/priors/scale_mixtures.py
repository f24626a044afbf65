"""Priors whose scales are sampled too, one for each parameter array or each weight.

The sites of the scales are named after the parameter, ``net/layers.0.kernel.scale``. A parameter is
a leaf in the tree of paths, so that no other site can have that name.

Each prior has two parametrisations. In the centred one the weight is a sample site, whose scale
depends on other sites: the two are strongly dependent where data say little about a weight. In the
other one its ratio to the scale is a site (``.decentered``, as in NumPyro's `LocScaleReparam`), and
the weight is a deterministic site; this one suits where the data say little.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from ppl_bnn.priors.base import (
    BiasPrior,
    PriorFunction,
    WeightPrior,
    check_positive,
    check_positive_or_prior,
    expand_to_event,
)


def hierarchical(
    scale: dist.Distribution | ArrayLike = 1.0,
    *,
    centered: bool = False,
    fan_in: bool = False,
    bias: BiasPrior = None,
) -> PriorFunction:
    """Give ``Normal(0, s)`` priors with one sampled scale s for each parameter array.

    The data decide how large the weights of each layer are (MacKay, 1992, "A practical Bayesian
    framework for backpropagation networks"; Neal, 1996). The standard deviation of a weight is
    the root mean square of s: for a half-normal one, `scale`.

    Parameters
    ----------
    scale : Distribution or float
        Prior of s, or the scale of a half-normal one. One scale for several arrays is
        sampled in the model and handed to `normal`.
    centered : bool
        Whether the weights themselves are sample sites (see above).
    fan_in : bool
        Whether weights are divided by the square root of the fan-in; see `fan_in_normal`.
    bias : Distribution or float, optional
        Prior of biases, or the standard deviation of a centred normal. By default the biases of a
        layer have a sampled scale too.

    Returns
    -------
    callable
        ``(path, shape)``, to be called where sites can be sampled. Its sites are ``{path}.scale``
        and, if not centred, ``{path}.decentered``.

    Raises
    ------
    ValueError
        If a number is not positive or the prior of s allows negative values; and in a call, with
        `fan_in`, for a parameter whose fan-in is not known.
    """
    check_positive(bias=bias)
    check_positive_or_prior("scale", scale, "a standard deviation", "dist.HalfNormal(1)")
    return Hierarchical(scale, centered, fan_in, bias)


def horseshoe(
    scale: ArrayLike = 1.0,
    *,
    centered: bool = False,
    fan_in: bool = False,
    bias: BiasPrior = None,
) -> PriorFunction:
    """Give horseshoe priors: most weights near zero, the others hardly shrunk.

    ``w = tau * lambda * z``, z standard normal, lambda ~ HalfCauchy(1) for each weight and
    tau ~ HalfCauchy(scale) for each parameter array (Carvalho, Polson & Scott, 2010, "The horseshoe
    estimator for sparse signals"). The weights have no standard deviation; in the non-centred
    parametrisation the sites, in unconstrained coordinates, all have one.

    Parameters
    ----------
    scale : float or scalar array
        Scale of tau. The smaller, the fewer weights are expected to matter.
    centered, fan_in, bias
        As in `hierarchical`.

    Returns
    -------
    callable
        ``(path, shape)``, to be called where sites can be sampled. Its sites are
        ``{path}.global_scale``, ``{path}.local_scale`` and, if not centred, ``{path}.decentered``.

    Raises
    ------
    ValueError
        If a number is not positive; and in a call, with `fan_in`, for a parameter whose fan-in is
        not known.
    """
    check_positive(scale=scale, bias=bias)
    return Horseshoe(scale, centered, fan_in, bias)


def regularized_horseshoe(
    scale: ArrayLike = 1.0,
    *,
    slab_scale: ArrayLike = 2.0,
    slab_df: ArrayLike = 4.0,
    centered: bool = False,
    fan_in: bool = False,
    bias: BiasPrior = None,
) -> PriorFunction:
    """Give horseshoe priors whose large weights are shrunk as under a Student-t prior.

    ``w = tau * lambda_c * z`` with ``lambda_c**2 = c**2 lambda**2 / (c**2 + tau**2 lambda**2)`` and
    c**2 ~ InverseGamma(slab_df / 2, slab_df * slab_scale**2 / 2) for each parameter array, the
    rest as in `horseshoe` (Piironen & Vehtari, 2017, "Sparsity information and regularization in
    the horseshoe and other shrinkage priors", equation 2.8). The standard deviation of a weight
    is finite for `slab_df` above 2, below that of the slab, ``slab_scale * sqrt(slab_df / (slab_df
    - 2))``, and has no closed form.

    Parameters
    ----------
    scale : float or scalar array
        Scale of tau.
    slab_scale, slab_df : float or scalar array
        Scale and degrees of freedom of the Student-t prior that large weights have.
    centered, bias
        As in `hierarchical`.
    fan_in : bool
        Whether weights, and with them all scales, are divided by the square root of the fan-in.

    Returns
    -------
    callable
        ``(path, shape)``, to be called where sites can be sampled. Its sites are those of
        `horseshoe` and ``{path}.slab_variance``.

    Raises
    ------
    ValueError
        As `horseshoe` does.
    """
    check_positive(scale=scale, slab_scale=slab_scale, slab_df=slab_df, bias=bias)
    return RegularizedHorseshoe(scale, slab_scale, slab_df, centered, fan_in, bias)


@dataclass(frozen=True)
class Hierarchical(WeightPrior):
    """What `hierarchical` returns."""

    scale: dist.Distribution | ArrayLike
    centered: bool
    fan_in: bool
    bias: BiasPrior

    def of_weight(
        self, path: str, shape: tuple[int, ...], factor: float
    ) -> dist.Distribution | jax.Array:
        """Sample the scale of one parameter, and give the parameter's prior or value."""
        given = isinstance(self.scale, dist.Distribution)
        prior = expand_to_event(
            self.scale if given else dist.HalfNormal(self.scale), (), f"the scale of {path!r}"
        )
        scale = _sample(f"{path}.scale", prior)
        return _scaled_normal(path, shape, factor * scale, self.centered)


@dataclass(frozen=True)
class Horseshoe(WeightPrior):
    """What `horseshoe` returns."""

    scale: ArrayLike
    centered: bool
    fan_in: bool
    bias: BiasPrior

    def of_weight(
        self, path: str, shape: tuple[int, ...], factor: float
    ) -> dist.Distribution | jax.Array:
        """Sample the scales of one parameter, and give the parameter's prior or value."""
        scale = _horseshoe_scales(path, shape, self.scale)
        return _scaled_normal(path, shape, factor * scale, self.centered)


@dataclass(frozen=True)
class RegularizedHorseshoe(WeightPrior):
    """What `regularized_horseshoe` returns."""

    scale: ArrayLike
    slab_scale: ArrayLike
    slab_df: ArrayLike
    centered: bool
    fan_in: bool
    bias: BiasPrior

    def of_weight(
        self, path: str, shape: tuple[int, ...], factor: float
    ) -> dist.Distribution | jax.Array:
        """Sample the scales of one parameter, and give the parameter's prior or value."""
        scale = _horseshoe_scales(path, shape, self.scale)
        half_df = self.slab_df / 2
        slab = dist.InverseGamma(half_df, half_df * self.slab_scale**2)
        slab_scale = jnp.sqrt(_sample(f"{path}.slab_variance", slab))
        # 1 / sqrt(1 / scale^2 + 1 / slab_scale^2), whose squares neither over- nor underflow
        scale = scale * slab_scale / jnp.hypot(scale, slab_scale)
        return _scaled_normal(path, shape, factor * scale, self.centered)


def _sample(name: str, prior: dist.Distribution) -> jax.Array:
    # values that are handed in, of a draw for instance, may be NumPy's
    return jnp.asarray(numpyro.sample(name, prior))


def _horseshoe_scales(path: str, shape: tuple[int, ...], scale: ArrayLike) -> jax.Array:
    local_prior = dist.HalfCauchy(1.0).expand(shape).to_event(len(shape))
    global_scale = _sample(f"{path}.global_scale", dist.HalfCauchy(scale))
    return global_scale * _sample(f"{path}.local_scale", local_prior)


def _scaled_normal(
    path: str, shape: tuple[int, ...], scale: jax.Array, centered: bool
) -> dist.Distribution | jax.Array:
    if centered:
        return dist.Normal(0.0, scale)
    standard_normal = dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape))
    ratio = _sample(f"{path}.decentered", standard_normal)
    return numpyro.deterministic(path, scale * ratio)
