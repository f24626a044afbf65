"""models.CNNLSTM."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ppl_bnn import models, priors
from ppl_bnn.models import CNNLSTM
from ppl_bnn.target import Target


def small(**options):
    return CNNLSTM(30, 3, embedding_size=4, filters=5, hidden_size=6, **options)


IDS = np.random.default_rng(0).integers(0, 30, size=(4, 21))


def test_number_and_shapes_of_parameters():
    state = nnx.to_flat_state(nnx.state(nnx.eval_shape(CNNLSTM), nnx.Param))
    shapes = {".".join(map(str, path)): leaf.get_value().shape for path, leaf in state}
    assert shapes == {
        "embedding.embedding": (20_000, 128),
        "conv.kernel": (5, 128, 64),
        "conv.bias": (64,),
        "lstm.dense_i.kernel": (64, 512),
        "lstm.dense_h.kernel": (128, 512),
        "lstm.dense_h.bias": (512,),
        "dense.kernel": (128, 2),
        "dense.bias": (2,),
    }
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 2_700_098


@pytest.mark.parametrize(("activation", "pooling"), [("swish", "average"), ("relu", "max")])
def test_equals_the_formula(activation, pooling):
    net = small(activation=activation, pooling=pooling)
    values = {
        ".".join(map(str, path)): np.asarray(leaf.get_value(), np.float64)
        for path, leaf in nnx.to_flat_state(nnx.state(net))
    }

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    words = values["embedding.embedding"][IDS]
    kernel = values["conv.kernel"]
    seen = [np.tensordot(words[:, t : t + 5], kernel, axes=2) for t in range(17)]
    units = np.stack(seen, axis=1) + values["conv.bias"]
    units = units * sigmoid(units) if activation == "swish" else np.maximum(units, 0)
    blocks = units[:, :16].reshape(4, 4, 4, 5)
    units = blocks.mean(2) if pooling == "average" else blocks.max(2)
    state = cell = np.zeros((4, 6))
    for t in range(4):
        gates = units[:, t] @ values["lstm.dense_i.kernel"] + values["lstm.dense_h.bias"]
        i, f, g, o = np.split(gates + state @ values["lstm.dense_h.kernel"], 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        state = sigmoid(o) * np.tanh(cell)
    expected = state @ values["dense.kernel"] + values["dense.bias"]
    np.testing.assert_allclose(net(IDS), expected, rtol=1e-4, atol=1e-5)


def test_forward_and_backward():
    net = small()
    gradient = nnx.grad(lambda net: jnp.sum(jnp.sin(net(IDS))))(net)
    for path, leaf in nnx.to_flat_state(gradient):
        assert np.isfinite(leaf.get_value()).all() and np.any(leaf.get_value() != 0), path


def test_repeatable_picklable_and_described():
    net = small()
    np.testing.assert_array_equal(small()(IDS), net(IDS))
    assert np.any(small(rngs=nnx.Rngs(1))(IDS) != net(IDS))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net))(IDS), net(IDS))
    assert repr(net) == "CNNLSTM(30, 3, activation='swish', pooling='average')"


@pytest.mark.parametrize("bad", [30, 10_000, -1])
def test_ids_outside_of_the_vocabulary(bad):
    ids = IDS.copy()
    ids[2, 7] = bad
    net = small()
    with pytest.raises(
        ValueError,
        match=rf"from 0 to 29 \(vocab_size 30\), but 1 do not, the first at index \(2, 7\): {bad}; "
        rf".*the largest {max(bad, IDS.max())}",
    ):
        net(ids)
    # in a program that cannot raise, the row is lost in plain sight
    out = np.asarray(jax.jit(lambda ids: net(ids))(ids))
    assert np.isnan(out[2]).all() and np.isfinite(out[[0, 1, 3]]).all()


def test_ids_of_the_vocabulary_pass():
    small().check_inputs(IDS)
    small().check_inputs(jnp.asarray(IDS, jnp.uint8))
    assert np.isfinite(small()(IDS.astype(np.uint8))).all()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (IDS[0], r"ids has shape \(21,\)"),
        (IDS[:, :7], r"ids has shape \(4, 7\).*at least 8: pad"),
        (IDS.astype(float), "ids must be integers .*float64"),
    ],
)
def test_wrong_shapes_and_types(ids, message):
    with pytest.raises(ValueError, match=message):
        small()(ids)


def test_floats_are_refused_by_check_inputs():
    with pytest.raises(ValueError, match="must be integers"):
        small().check_inputs(IDS.astype(float))


@pytest.mark.slow
def test_full_width():
    """One gradient on four texts of a hundred words."""
    net = CNNLSTM()
    ids = np.random.default_rng(0).integers(0, 20_000, size=(4, 100))
    gradient = nnx.grad(lambda net: jnp.sum(net(ids) ** 2))(net)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_ids_of_every_integer_type(dtype):
    net = CNNLSTM(300, 2, embedding_size=2, filters=2, hidden_size=2)
    ids = np.full((1, 8), 100)
    np.testing.assert_array_equal(net(ids.astype(dtype)), net(ids.astype(np.int32)))


def test_ids_beyond_32_bits_are_refused_before_they_are_cut():
    net = CNNLSTM(300, 2, embedding_size=2, filters=2, hidden_size=2)
    model, ids = models.classification(net, priors.normal()), np.full((2, 8), 100 + 2**32)
    with pytest.raises(ValueError, match="would cut them to 32 bits"):
        Target(model, (ids, np.array([0, 1])), {})
