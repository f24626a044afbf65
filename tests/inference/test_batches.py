"""Row numbers of minibatches."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ppl_bnn.inference.batches import BATCHING, draw, first_place, shuffled

SEED = jax.random.bits(jax.random.key(0), (2,), jnp.uint32)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 64, 65, 1000])
def test_an_order_holds_every_row_once(num_rows):
    order = shuffled(SEED, 0, jnp.arange(num_rows), num_rows)
    np.testing.assert_array_equal(np.sort(order), np.arange(num_rows))


@pytest.mark.parametrize("num_rows", [5, 12])
def test_orders_are_uniform_in_single_rows_and_in_pairs(num_rows):
    count = 20_000
    epochs = jnp.arange(count)
    draw_three = jax.vmap(lambda epoch: shuffled(SEED, epoch, jnp.arange(3), num_rows))
    orders = np.asarray(jax.jit(draw_three)(epochs))
    for place in range(3):
        assert (
            scipy.stats.chisquare(np.bincount(orders[:, place], minlength=num_rows)).pvalue > 1e-4
        )
    for first, second in ((0, 1), (1, 2)):
        pairs = np.zeros((num_rows, num_rows))
        np.add.at(pairs, (orders[:, first], orders[:, second]), 1)
        assert np.all(np.diag(pairs) == 0)
        others = pairs[~np.eye(num_rows, dtype=bool)]
        assert scipy.stats.chisquare(others).pvalue > 1e-4


def batches(batching, num_rows, batch_size, num_batches, seed=0):
    def step(carry, _):
        key, place = carry
        key, key_draw = jax.random.split(key)
        index, place = draw(
            key_draw, place, num_rows=num_rows, batch_size=batch_size, batching=batching
        )
        return (key, place), index[0]

    key, key_place = jax.random.split(jax.random.key(seed))
    start = (key, first_place(key_place))
    return np.asarray(jax.jit(partial(jax.lax.scan, step, length=num_batches))(start, None)[1])


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10])
def test_epochs_hold_every_row_once_and_differ(batch_size):
    num_rows, num_epochs = 10, 30
    index = batches("epochs", num_rows, batch_size, num_rows * num_epochs // batch_size + 1)
    epochs = index.ravel()[: num_rows * num_epochs].reshape(num_epochs, num_rows)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(num_rows), (30, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == num_epochs


def test_a_batch_without_replacement_has_no_row_twice_and_one_with_replacement_has():
    index = batches("without_replacement", 20, 10, 500)
    assert all(len(set(batch)) == 10 for batch in index)
    index_iid = batches("iid", 20, 10, 500)
    assert any(len(set(batch)) < 10 for batch in index_iid)
    for found in (index, index_iid):
        assert scipy.stats.chisquare(np.bincount(found.ravel(), minlength=20)).pvalue > 1e-4


def test_noise_of_a_mean_over_a_batch():
    """Variance sigma^2 / B with replacement, times (N - B) / (N - 1) without."""
    values = np.random.default_rng(0).normal(size=50)
    for batching, factor in (("iid", 1.0), ("without_replacement", 30 / 49)):
        means = values[batches(batching, 50, 20, 20_000)].mean(axis=1)
        expected = factor * values.var() / 20
        assert means.var() == pytest.approx(expected, rel=5 * np.sqrt(2 / 20_000))


@pytest.mark.parametrize("batching", BATCHING)
def test_chains_draw_apart_and_alike_for_one_seed(batching):
    first, again = (batches(batching, 1000, 8, 5, seed) for seed in (1, 1))
    np.testing.assert_array_equal(first, again)
    assert (batches(batching, 1000, 8, 5, 2) != first).any()


def test_a_step_does_not_grow_with_the_number_of_rows():
    def operations(num_rows):
        run = jax.jit(lambda seed: shuffled(seed, 0, jnp.arange(16), num_rows))
        memory = run.lower(SEED).compile().memory_analysis()
        return memory.temp_size_in_bytes

    assert operations(2**28) <= operations(2**10) + 256


@pytest.mark.parametrize("batching", BATCHING)
def test_batches_drawn_at_once_are_batches_in_a_row(batching):
    options = {"num_rows": 10, "batch_size": 4, "batching": batching}
    key, key_place = jax.random.split(jax.random.key(0))
    start = first_place(key_place)
    index, place = draw(key, start, num_batches=7, **options)
    assert index.shape == (7, 4)
    if batching == "epochs":
        rows, one = [], start
        for _ in range(7):
            few, one = draw(key, one, **options)
            rows.append(few[0])
        np.testing.assert_array_equal(index, rows)
        assert jax.tree.map(int, one[1:]) == jax.tree.map(int, place[1:]) == (2, 8)
    else:
        assert len({tuple(batch) for batch in index.tolist()}) > 1
    if batching == "without_replacement":
        assert all(len(set(batch)) == 4 for batch in index.tolist())
