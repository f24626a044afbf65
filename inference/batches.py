"""Which rows a minibatch holds: drawn with or without replacement, or through shuffled epochs.

None of these keeps a permutation of the rows, so that a step costs what its batch costs, however
many rows there are. Orders without repetition come from a keyed bijection of the row numbers, which
is evaluated at the places of one batch.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

BATCHING = ("iid", "without_replacement", "epochs")
ROUNDS = 6
GOLDEN = 0x9E3779B9  # 2^32 / golden ratio, whose multiples are far apart
SMALLEST_HALF = 4  # of the bits; networks of fewer favour some orders over others


class Place(NamedTuple):
    """How far a chain has come in its shuffled rows; of use to ``"epochs"`` alone."""

    seed: jax.Array  # of all orders of the chain, shape (2,)
    epoch: jax.Array  # shape ()
    offset: jax.Array  # rows of the epoch that were used, shape ()


def first_place(rng_key: jax.Array) -> Place:
    """The beginning of a first epoch."""
    return Place(_seed(rng_key), jnp.uint32(0), jnp.int32(0))


def draw(
    rng_key: jax.Array,
    place: Place | None,
    *,
    num_rows: int,
    batch_size: int,
    batching: str,
    num_batches: int = 1,
) -> tuple[jax.Array, Place | None]:
    """Row numbers of minibatches, one after the other.

    Parameters
    ----------
    rng_key : jax.Array
        A key for all of them.
    place : Place, optional
        Where the chain is in its epoch; of use to ``"epochs"`` alone.
    num_rows, batch_size, num_batches : int
        Of the data, of a batch, and how many batches; ``batch_size <= num_rows``.
    batching : {"iid", "without_replacement", "epochs"}
        Rows drawn independently, with replacement; a batch without repetition, batches
        independent; or every row once in each epoch, in a new order every time. A batch that
        crosses the end of an epoch goes on with the next.

    Returns
    -------
    index, place
        Integers of shape (num_batches, batch_size) below `num_rows`, and the place after them.

    Notes
    -----
    The gradients of one epoch add up to the full one, so with ``"epochs"`` their noise is
    correlated between steps. Formulas for the stationary distribution of SGD (Mandt, Hoffman &
    Blei 2017) hold for independent batches.
    """
    shape = (num_batches, batch_size)
    if batching == "iid":
        return jax.random.randint(rng_key, shape, 0, num_rows), place
    if batching == "without_replacement":
        seeds = jax.random.bits(rng_key, (num_batches, 2), jnp.uint32)
        places = jnp.arange(batch_size)
        return jax.vmap(lambda seed: shuffled(seed, 0, places, num_rows))(seeds), place
    assert place is not None
    at = place.offset + jnp.arange(num_batches * batch_size).reshape(shape)
    epoch = place.epoch + (at // num_rows).astype(jnp.uint32)
    index = shuffled(place.seed, epoch, at % num_rows, num_rows)
    end = place.offset + num_batches * batch_size
    return index, Place(
        place.seed, place.epoch + (end // num_rows).astype(jnp.uint32), end % num_rows
    )


def shuffled(
    seed: jax.Array, epoch: jax.Array | int, places: jax.Array, num_rows: int
) -> jax.Array:
    """What stands at some places of a random order of ``range(num_rows)``.

    A Feistel network permutes the numbers below a power of four; those that land beyond the rows
    are permuted again until they do not (cycle walking, Black & Rogaway 2002), which from 64 rows
    on takes less than four rounds on average.

    Parameters
    ----------
    seed : jax.Array
        Names a sequence of orders; 32-bit unsigned integers of shape (2,).
    epoch : jax.Array
        Which of them, for each place or for all.
    places : jax.Array
        Integers below `num_rows`, any shape.
    num_rows : int
        At most 2^30.

    Returns
    -------
    jax.Array
        Integers below `num_rows`, different for different places.
    """
    half = max((max(num_rows - 1, 1).bit_length() + 1) // 2, SMALLEST_HALF)
    mask = jnp.uint32((1 << half) - 1)
    order = _mix(seed[0] ^ _mix(seed[1] + jnp.asarray(epoch, jnp.uint32)))
    round_keys = [_mix(order + jnp.uint32(GOLDEN * (k + 1) % 2**32)) for k in range(ROUNDS)]

    def permute(number: jax.Array) -> jax.Array:
        left, right = number >> half, number & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        return (left << half) | right

    def walk(number: jax.Array) -> jax.Array:
        return jnp.where(number < num_rows, number, permute(number))

    first = permute(places.astype(jnp.uint32))
    landed = jax.lax.while_loop(lambda number: jnp.any(number >= num_rows), walk, first)
    return landed.astype(jnp.int32)


def _seed(rng_key: jax.Array) -> jax.Array:
    return jax.random.bits(rng_key, (2,), jnp.uint32)


def _mix(number: jax.Array) -> jax.Array:
    """A hash of 32 bits in which every bit of the input moves every bit of the output.

    The finaliser of MurmurHash3, with the constants of C. Wellons' search ("lowbias32").
    """
    number ^= number >> 16
    number *= jnp.uint32(0x7FEB352D)
    number ^= number >> 15
    number *= jnp.uint32(0x846CA68B)
    return number ^ (number >> 16)
