"""The variational posterior of rank-1 networks: mixtures on the factors, points for the weights.

Dusenberry et al. (2020), *Efficient and scalable Bayesian neural nets with rank-1 factors*. The
factors r and s of `ppl_bnn.models.Rank1` layers have a posterior with K components, each of which
factorises over all entries of all factors. Everything else (weights, biases, a noise scale) is a
point, the mode under its prior, or has a normal posterior that all components share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro import handlers
from numpyro.distributions import constraints

from ppl_bnn.arguments import check_choice, check_integer, is_number
from ppl_bnn.density import is_real
from ppl_bnn.dropout import Dropout

Values = dict[str, jax.Array]
LocScale = dict[str, tuple[jax.Array, jax.Array]]

FAMILIES = ("normal", "cauchy", "log_normal", "half_cauchy", "delta", "dropout")
SCALES = ("free", "shared", "fixed")
FACTORS = ("*.r", "*.s", "*/r", "*/s")
# of parameters, after the site
LOC, SCALE, POINT = "_auto_loc", "_auto_scale", "_auto_point"
MEAN, WIDTH = "_auto_mean", "_auto_width"
INIT_SCALE = 0.0316  # sqrt(p / (1 - p)) with p = 0.001, as in the paper's code


class Parts(NamedTuple):
    """Parameters of an `AutoRank1`, by what they describe."""

    points: Values
    factors: LocScale  # with a leading axis of components
    mean_field: LocScale


class AutoRank1:
    """Guide for models with rank-1 layers, to be fitted by `ppl_bnn.fit` or NumPyro's `SVI`.

    Parameters
    ----------
    model : callable
        A NumPyro model, for instance with ``random_module("net", models.rank1(net), prior)``, in
        which r and s have priors around one. Priors of everything else act as penalties, a normal
        one with standard deviation ``a`` as the L2 term ``w^2 / (2 a^2)``.
    num_components : int
        K.
    family : {"normal", "cauchy", "log_normal", "half_cauchy", "delta", "dropout"}
        Of each entry of r and s. "delta" makes K members that share their weights, BatchEnsemble
        (Wen, Tran & Ba 2020). Only the first two may change a sign. A Cauchy needs a prior with
        tails as heavy. "dropout" makes each entry 0 or 1 / (1 - `dropout_rate`), with nothing to
        fit and no divergence: Monte Carlo dropout of whole features (Gal & Ghahramani 2016),
        usually of ``factors=("*.s",)`` in a network made with ``models.rank1(net, vectors="s")``.
    scale : {"free", "shared", "fixed"}
        One scale for each entry, one for each factor and component, or `init_scale` for all.
    init_scale : float
        Of the distributions of factors and mean-field sites, positive.
    init_spread : float
        Locations begin at draws from N(m, init_spread^2), m the value that the layer was built
        with: 1, or 0 where a perturbation adds; for sites without such a value, 1. Those of the
        positive families begin at the exponential of draws around zero.
    random_sign : float, optional
        Probability with which a location begins at m and not at -m, in place of N(m, .). A prior
        around +1 of standard deviation 0.1 is 200 nats away from -1, for each entry: only with a
        slow rise of the divergence's weight do such starts keep some of their signs.
    dropout_rate : float
        Probability of zero, of the family "dropout" alone.
    factors : sequence of str
        Patterns of the sites that count as factors. With none, and no `mean_field`, the guide is
        one point, the mode of the posterior.
    mean_field : sequence of str
        Patterns of other sites that get a normal posterior, independent for each entry and shared
        by all components, that begins at the network's own values. The paper has it for embeddings;
        with ``factors=()`` and ``("*",)`` it makes a fully variational network.

    Raises
    ------
    ValueError
        If an argument is none of the above; and at the first call, if a pattern fits no site.
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
        dropout_rate: float = 0.1,
        factors: Sequence[str] = FACTORS,
        mean_field: Sequence[str] = (),
    ):
        check_integer("num_components", num_components, 1)
        check_choice("family", family, FAMILIES)
        check_choice("scale", scale, SCALES)
        for name, value in (("init_scale", init_scale), ("init_spread", init_spread)):
            if not (is_number(value) and 0 < value < np.inf):
                raise ValueError(f"`{name}` must be positive and finite, got {value!r}.")
        if random_sign is not None and not (is_number(random_sign) and 0 <= random_sign <= 1):
            raise ValueError(f"`random_sign` is a probability, got {random_sign!r}.")
        if random_sign is not None and family in ("log_normal", "half_cauchy", "dropout"):
            raise ValueError(
                f"`random_sign` begins at -1, where a family of positive values ({family!r}) has "
                "no density: take 'normal', 'cauchy' or 'delta'."
            )
        if not (is_number(dropout_rate) and 0 <= dropout_rate < 1):
            raise ValueError(f"`dropout_rate` must be in [0, 1), got {dropout_rate!r}.")
        for name, patterns in (("factors", factors), ("mean_field", mean_field)):
            if isinstance(patterns, str):
                raise ValueError(f"`{name}` must be a sequence of patterns, got {patterns!r}.")
        self.model = model
        self.num_components = int(num_components)
        self.family, self.scale, self.init_scale = family, scale, init_scale
        self.init_spread, self.random_sign = init_spread, random_sign
        self.dropout_rate = dropout_rate
        self.factors, self.mean_field = tuple(factors), tuple(mean_field)

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
        discrete = [name for name, site in sites.items() if site["fn"].support.is_discrete]
        if discrete:
            raise ValueError(f"the latent sites {discrete} are discrete: sum them out by hand.")
        self._check_patterns(list(sites))
        params: Values = {}
        for number, (name, site) in enumerate(sites.items()):
            params |= self._declare(jax.random.fold_in(key_init, number), name, site)
        points, factors, mean_field = self.split(params)
        component = jax.random.randint(key_component, (), 0, self.num_components)
        own = {name: self.distribution(*(p[component] for p in factors[name])) for name in factors}
        own |= {name: normal(*both) for name, both in mean_field.items()}
        own |= {name: dist.Delta(x, event_dim=jnp.ndim(x)) for name, x in points.items()}
        return {name: numpyro.sample(name, own[name]) for name in sites}

    def split(self, params: Values) -> Parts:
        """Values of the points, locations and scales of factors and mean-field sites, by site."""

        def ending(suffix: str) -> Values:
            return {
                name.removesuffix(suffix): value
                for name, value in params.items()
                if name.endswith(suffix)
            }

        scales, widths = ending(SCALE), ending(WIDTH)
        locs = ending(LOC)
        factors = {}
        for name in locs or scales:
            either = locs[name] if locs else scales[name]
            scale = scales.get(name, jnp.asarray(self.init_scale, either.dtype))
            loc = locs.get(name, jnp.zeros_like(either))
            factors[name] = loc, jnp.broadcast_to(scale, either.shape)
        mean_field = {name: (loc, widths[name]) for name, loc in ending(MEAN).items()}
        return Parts(ending(POINT), factors, mean_field)

    def distribution(self, loc: jax.Array, scale: jax.Array) -> dist.Distribution:
        """Distribution of a factor of one component, as one event."""
        if self.family == "delta":
            return dist.Delta(loc, event_dim=jnp.ndim(loc))
        if self.family == "dropout":
            return Dropout(self.dropout_rate).expand(jnp.shape(loc)).to_event(jnp.ndim(loc))
        if self.family == "half_cauchy":
            return dist.HalfCauchy(scale).to_event(jnp.ndim(scale))
        kinds = {"normal": dist.Normal, "cauchy": dist.Cauchy, "log_normal": dist.LogNormal}
        return kinds[self.family](loc, scale).to_event(jnp.ndim(loc))

    @property
    def is_point(self) -> bool:
        """Whether all draws of a component are the same."""
        return not self.mean_field and (not self.factors or self.family == "delta")

    def sample_posterior(
        self, rng_key: jax.Array, params: Values, num_samples: int = 1
    ) -> dict[str, np.ndarray]:
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
        samples, shared = self.draw(rng_key, params, num_samples)
        lead = self.num_components, num_samples
        return samples | {n: np.broadcast_to(x, (*lead, *x.shape)) for n, x in shared.items()}

    def draw(
        self, rng_key: jax.Array, params: Values, num_samples: int
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """As `sample_posterior`, with the points apart and once."""
        check_integer("num_samples", num_samples, 1)
        points, factors, mean_field = self.split(params)
        lead = self.num_components, num_samples
        draws = {}
        for number, name in enumerate(sorted({*factors, *mean_field})):
            key = jax.random.fold_in(rng_key, number)
            if name in mean_field:
                draws[name] = normal(*mean_field[name]).sample(key, lead)
                continue

            def sample(key: jax.Array, loc: jax.Array, scale: jax.Array) -> jax.Array:
                return self.distribution(loc, scale).sample(key, (num_samples,))

            keys = jax.random.split(key, self.num_components)
            draws[name] = jax.vmap(sample)(keys, *factors[name])
        on_host = {name: np.asarray(value) for name, value in draws.items()}
        shared = {name: np.asarray(value) for name, value in points.items()}
        if on_host:
            return on_host, shared
        return {n: np.broadcast_to(x, (*lead, *x.shape)) for n, x in shared.items()}, {}

    def _check_patterns(self, sites: list[str]) -> None:
        for argument, patterns in (("factors", self.factors), ("mean_field", self.mean_field)):
            if patterns and not any(_fits(name, patterns) for name in sites):
                raise ValueError(
                    f"no site of the model fits `{argument}` ({', '.join(patterns)}); it has "
                    f"{sorted(sites)}. Make the network rank-1 (`models.rank1`), or name its sites."
                )

    def _declare(self, rng_key: jax.Array, name: str, site: dict[str, Any]) -> Values:
        """Parameters of one site, with their values in this run of the guide."""
        value, initial = site["value"], site["infer"].get("initial_value")
        if not _fits(name, self.factors):
            start = value if initial is None else jnp.asarray(initial(), value.dtype)
            support = site["fn"].support
            if not _fits(name, self.mean_field):
                return {name + POINT: numpyro.param(name + POINT, start, constraint=support)}
            if not is_real(support):
                raise ValueError(
                    f"`mean_field` gives {name!r} a normal posterior, but its support is {support}."
                )
            width = jnp.full(jnp.shape(value), self.init_scale, value.dtype)
            return {name + MEAN: numpyro.param(name + MEAN, start)} | _scale(name + WIDTH, width)
        shape = (self.num_components, *jnp.shape(value))
        near_zero = self.init_spread * jax.random.normal(rng_key, shape, value.dtype)
        if self.family == "half_cauchy":  # its scale is its location
            return _scale(name + SCALE, jnp.exp(near_zero))
        if self.family == "dropout":  # a constant, that says which sites are factors
            return {name + LOC: numpyro.param(name + LOC, jnp.ones_like(near_zero))}
        middle = jnp.ones((), value.dtype) if initial is None else initial()
        if self.random_sign is not None:
            is_positive = near_zero < self.init_spread * norm.ppf(self.random_sign)
            start = jnp.where(is_positive, middle, -middle).astype(value.dtype)
        else:
            start = near_zero if self.family == "log_normal" else middle + near_zero
        params = {name + LOC: numpyro.param(name + LOC, start)}
        if self.family == "delta" or self.scale == "fixed":
            return params
        one_each = (self.num_components, *(1 for _ in shape[1:]))
        scales = shape if self.scale == "free" else one_each
        return params | _scale(name + SCALE, jnp.full(scales, self.init_scale, value.dtype))


def normal(loc: jax.Array, scale: jax.Array) -> dist.Distribution:
    """Independent normals as one event."""
    return dist.Normal(loc, scale).to_event(jnp.ndim(loc))


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _scale(name: str, start: jax.Array) -> Values:
    return {name: numpyro.param(name, start, constraint=constraints.softplus_positive)}
