"""Draws of all factors of a rank-1 guide at once: of one component, or one for each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ppl_bnn.dropout import Dropout
from ppl_bnn.inference.rank1_guide import AutoRank1, LocScale, Values


class Packed(NamedTuple):
    """Locations and scales of all factors side by side, so that one program draws them.

    Shape (K, values), or (values,) of one component, or (rows, values) where rows see components
    of their own.
    """

    loc: jax.Array
    scale: jax.Array


class Packing:
    """Which place each factor has among all."""

    def __init__(self, factors: LocScale):
        self.shapes = {name: jnp.shape(loc)[1:] for name, (loc, _) in factors.items()}

        self.num_values = sum(math.prod(shape) for shape in self.shapes.values())

    def pack(self, factors: LocScale, num_components: int) -> Packed:
        """All factors side by side, shape (K, values)."""
        if not factors:
            return Packed(jnp.zeros((num_components, 0)), jnp.zeros((num_components, 0)))
        sides = zip(*factors.values(), strict=True)
        return Packed(*(jnp.concatenate([x.reshape(len(x), -1) for x in s], 1) for s in sides))

    def unpack(self, values: jax.Array) -> Values:
        """Values by site, from the last axis."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        # the derivative of one split is one concatenation; that of slices would be many sums
        parts = jnp.split(values, list(accumulate(sizes))[:-1], axis=-1)
        return {
            name: part.reshape(*part.shape[:-1], *shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=False)
        }


def deviations(rng_key: jax.Array, guide: AutoRank1, shape: tuple[int, ...]) -> jax.Array:
    """What `place` makes draws of: draws in units of the scale, or dropout's multipliers."""
    laws: dict[str, Callable[[], jax.Array]] = {
        "delta": lambda: jnp.zeros(shape),
        "dropout": lambda: Dropout(guide.dropout_rate).sample(rng_key, shape),
        "half_cauchy": lambda: jnp.abs(jax.random.cauchy(rng_key, shape)),
        "cauchy": lambda: jax.random.cauchy(rng_key, shape),
    }
    return computed_once(rng_key, laws.get(guide.family, lambda: jax.random.normal(rng_key, shape)))


def flipped(
    rng_key: jax.Array, guide: AutoRank1, lead: tuple[int, ...], num_values: int
) -> jax.Array:
    """Deviations for each row, the last axis of `lead`, that share sizes and not signs.

    Each has the law of `deviations`, as in flipout (Wen, Vicol, Ba, Tran & Grosse 2018), and costs
    a random bit, where a normal costs some hundred operations. Shape (*lead, num_values).
    """
    key_size, key_sign = jax.random.split(rng_key)
    sizes = deviations(key_size, guide, (*lead[:-1], 1, num_values))
    shape = (*lead, -(-num_values // 32))
    words = computed_once(key_sign, lambda: jax.random.bits(key_sign, shape, jnp.uint32))
    bits = (words[..., None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    is_minus = bits.reshape(*shape[:-1], -1)[..., :num_values] == 1
    return jnp.where(is_minus, -sizes, sizes)


def place(guide: AutoRank1, packed: Packed, deviations: jax.Array) -> jax.Array:
    """Draws, from deviations with the same last axis."""
    if guide.family == "dropout":
        return deviations
    if guide.family == "delta":
        return jnp.broadcast_to(packed.loc, deviations.shape)
    moved = packed.loc + packed.scale * deviations  # a half-Cauchy's location is zero
    return jnp.exp(moved) if guide.family == "log_normal" else moved


def normals(rng_key: jax.Array, sites: LocScale, lead: tuple[int, ...]) -> Values:
    """Draws of the mean-field sites, with leading axes."""
    keys = jax.random.split(rng_key, len(sites))
    return {
        name: loc + scale * jax.random.normal(key, (*lead, *jnp.shape(loc)), loc.dtype)
        for key, (name, (loc, scale)) in zip(keys, sites.items(), strict=True)
    }


def is_symmetric(guide: AutoRank1) -> bool:
    """Whether deviations of factors from their locations may change their signs."""
    return guide.family in ("normal", "cauchy", "log_normal")


def computed_once(rng_key: jax.Array, make: Callable[[], jax.Array]) -> jax.Array:
    """The array, in memory, before anything uses it.

    On CPUs XLA computes cheap things again wherever they are used, and takes a random normal for
    cheap: again for every row that shares it, in a step that then takes twice as long. It cannot
    look through a loop of which it does not know that it makes one round.
    """
    if jax.default_backend() != "cpu":
        return make()
    first, second = jax.random.bits(rng_key, (2,), jnp.uint32)
    rounds = 1 + (first == second).astype(jnp.int32)
    struct = jax.eval_shape(make)
    nothing = jnp.zeros(struct.shape, struct.dtype)
    return jax.lax.fori_loop(0, rounds, lambda _, __: make(), nothing)
