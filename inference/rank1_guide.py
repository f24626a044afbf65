"""The variational posterior of rank-1 networks: mixtures on the factors, points for the weights.

Dusenberry et al. (2020), *Efficient and scalable Bayesian neural nets with rank-1 factors*. The
factors r and s of `ppl_bnn.models.Rank1` layers have a posterior with K components, each of which
factorises over all entries of all factors. Everything else (weights, biases, a noise scale) is a
point, the mode under its prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro import handlers
from numpyro.distributions import constraints

from ppl_bnn.arguments import check_choice, check_integer, is_number

Values = dict[str, jax.Array]

FAMILIES = ("normal", "cauchy", "log_normal", "half_cauchy", "delta")
SCALES = ("free", "shared", "fixed")
FACTORS = ("*.r", "*.s", "*/r", "*/s")
LOC, SCALE, POINT = "_auto_loc", "_auto_scale", "_auto_point"  # of parameters, after the site
INIT_SCALE = 0.0316  # sqrt(p / (1 - p)) with p = 0.001, as in the paper's code


class AutoRank1:
    """Guide for models with rank-1 layers, to be fitted by NumPyro's `SVI` with `Rank1ELBO`.

    Parameters
    ----------
    model : callable
        A NumPyro model, for instance with ``random_module("net", models.rank1(net), prior)``, in
        which r and s have priors around one. Priors of everything else act as penalties, a normal
        one with standard deviation ``a`` as the L2 term ``w^2 / (2 a^2)``.
    num_components : int
        K.
    family : {"normal", "cauchy", "log_normal", "half_cauchy", "delta"}
        Of each entry of r and s. "delta" makes K members that share their weights, BatchEnsemble.
        Only the first two may change a sign. A Cauchy needs a prior with tails as heavy.
    scale : {"free", "shared", "fixed"}
        One scale for each entry, one for each factor and component, or `init_scale` for all.
    init_scale : float
        Of the factors' distributions, positive.
    init_spread : float
        Locations begin at draws from N(1, init_spread^2); for the positive families, at the
        exponential of draws around zero.
    random_sign : float, optional
        Probability with which a location begins at +1 and not at -1, in place of N(1, .). A prior
        around +1 of standard deviation 0.1 is 200 nats away from -1, for each entry: only with a
        slow rise of the divergence's weight do such starts keep some of their signs.
    factors : sequence of str
        Patterns of the sites that count as factors.

    Raises
    ------
    ValueError
        If an argument is none of the above; and at the first call, if no site is a factor.
    """

    def __init__(
        self,
        model: Callable,
        *,
        num_components: int = 4,
        family: str = "normal",
        scale: str = "free",
        init_scale: float = INIT_SCALE,
        init_spread: float = 0.1,
        random_sign: float | None = None,
        factors: Sequence[str] = FACTORS,
    ):
        check_integer("num_components", num_components, 1)
        check_choice("family", family, FAMILIES)
        check_choice("scale", scale, SCALES)
        for name, value in (("init_scale", init_scale), ("init_spread", init_spread)):
            if not (is_number(value) and 0 < value < np.inf):
                raise ValueError(f"`{name}` must be positive and finite, got {value!r}.")
        if random_sign is not None and not (is_number(random_sign) and 0 <= random_sign <= 1):
            raise ValueError(f"`random_sign` is a probability, got {random_sign!r}.")
        if random_sign is not None and family in ("log_normal", "half_cauchy"):
            raise ValueError(
                f"`random_sign` begins at -1, where a family of positive values ({family!r}) has "
                "no density: take 'normal', 'cauchy' or 'delta'."
            )
        if isinstance(factors, str):
            raise ValueError(f"`factors` must be a sequence of patterns, got {factors!r}.")
        self.model = model
        self.num_components = int(num_components)
        self.family, self.scale, self.init_scale = family, scale, init_scale
        self.init_spread, self.random_sign = init_spread, random_sign
        self.factors = tuple(factors)

    def __call__(self, *args: Any, **kwargs: Any) -> Values:
        """The guide as NumPyro sees it: its parameters, and a draw from one of its components."""
        key_model, key_init, key_component = jax.random.split(numpyro.prng_key(), 3)
        with handlers.block():
            seeded = handlers.seed(self.model, key_model)
            trace = handlers.trace(seeded).get_trace(*args, **kwargs)
        sites = {
            name: site
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        params: Values = {}
        for number, (name, site) in enumerate(sites.items()):
            params |= self._declare(jax.random.fold_in(key_init, number), name, site)
        points, factors = self.split(params)
        if not factors:
            raise ValueError(
                f"no site of the model is a factor ({', '.join(self.factors)}); it has "
                f"{sorted(sites)}. Make the network rank-1 (`models.rank1`), or name its sites in "
                "`factors`."
            )
        component = jax.random.randint(key_component, (), 0, self.num_components)
        own = {name: self.distribution(*(p[component] for p in factors[name])) for name in factors}
        own |= {name: dist.Delta(x, event_dim=jnp.ndim(x)) for name, x in points.items()}
        return {name: numpyro.sample(name, own[name]) for name in sites}

    def split(self, params: Values) -> tuple[Values, dict[str, tuple[jax.Array, jax.Array]]]:
        """Values of the points, and locations and scales of the factors, by site.

        The latter have a leading axis of components.
        """
        points = {
            name.removesuffix(POINT): value
            for name, value in params.items()
            if name.endswith(POINT)
        }
        kind = SCALE if self.family == "half_cauchy" else LOC
        names = [name.removesuffix(kind) for name in params if name.endswith(kind)]
        factors = {}
        for name in names:
            either = params[name + kind]
            loc = params.get(name + LOC, jnp.zeros_like(either))
            scale = params.get(name + SCALE, jnp.asarray(self.init_scale, either.dtype))
            factors[name] = loc, jnp.broadcast_to(scale, either.shape)
        return points, factors

    def distribution(self, loc: jax.Array, scale: jax.Array) -> dist.Distribution:
        """Distribution of a factor of one component, as one event."""
        if self.family == "delta":
            return dist.Delta(loc, event_dim=jnp.ndim(loc))
        if self.family == "half_cauchy":
            return dist.HalfCauchy(scale).to_event(jnp.ndim(scale))
        kinds = {"normal": dist.Normal, "cauchy": dist.Cauchy, "log_normal": dist.LogNormal}
        return kinds[self.family](loc, scale).to_event(jnp.ndim(loc))

    def sample_posterior(
        self, rng_key: jax.Array, params: Values, num_samples: int = 1
    ) -> dict[str, jax.Array]:
        """Draws, with leading axes (component, draw), for `predict` and `function_space`.

        Give those ``model=`` and ``group_by_chain=True``: components take the place of chains.

        Parameters
        ----------
        rng_key : jax.Array
            Random number generator key.
        params : dict
            What `SVI.get_params` or ``SVI.run(...).params`` gives.
        num_samples : int
            Of each component.

        Returns
        -------
        dict of arrays
            By site, shape (K, num_samples, ...). Points are the same in all draws.
        """
        check_integer("num_samples", num_samples, 1)
        points, factors = self.split(params)
        lead = self.num_components, num_samples
        draws = {name: jnp.broadcast_to(x, (*lead, *jnp.shape(x))) for name, x in points.items()}
        for number, (name, (loc, scale)) in enumerate(sorted(factors.items())):
            keys = jax.random.split(jax.random.fold_in(rng_key, number), self.num_components)

            def sample(key: jax.Array, loc: jax.Array, scale: jax.Array) -> jax.Array:
                return self.distribution(loc, scale).sample(key, (num_samples,))

            draws[name] = jax.vmap(sample)(keys, loc, scale)
        return draws

    def _declare(self, rng_key: jax.Array, name: str, site: dict[str, Any]) -> Values:
        """Parameters of one site, with their values in this run of the guide."""
        value = site["value"]
        if not any(fnmatchcase(name, pattern) for pattern in self.factors):
            initial = site["infer"].get("initial_value")
            start = value if initial is None else jnp.asarray(initial(), value.dtype)
            support = site["fn"].support
            return {name + POINT: numpyro.param(name + POINT, start, constraint=support)}
        shape = (self.num_components, *jnp.shape(value))
        near_zero = self.init_spread * jax.random.normal(rng_key, shape, value.dtype)
        if self.family == "half_cauchy":  # its scale is its location
            return self._declare_scale(name, jnp.exp(near_zero))
        if self.random_sign is not None:
            is_positive = near_zero < self.init_spread * norm.ppf(self.random_sign)
            start = jnp.where(is_positive, 1, -1).astype(value.dtype)
        else:
            start = near_zero if self.family == "log_normal" else 1 + near_zero
        params = {name + LOC: numpyro.param(name + LOC, start)}
        if self.family == "delta" or self.scale == "fixed":
            return params
        one_each = (self.num_components, *(1 for _ in shape[1:]))
        scales = shape if self.scale == "free" else one_each
        return params | self._declare_scale(name, jnp.full(scales, self.init_scale, value.dtype))

    def _declare_scale(self, name: str, start: jax.Array) -> Values:
        constraint = constraints.softplus_positive
        return {name + SCALE: numpyro.param(name + SCALE, start, constraint=constraint)}
