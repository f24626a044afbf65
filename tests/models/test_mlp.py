"""models.MLP."""

import pickle

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

from ppl_bnn.models.mlp import MLP

X = jax.random.normal(jax.random.key(0), (5, 3))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("swish", lambda z: z / (1 + np.exp(-z))),
        ("tanh", np.tanh),
        ("softplus", lambda z: np.log1p(np.exp(z))),
        ("sigmoid", lambda z: 1 / (1 + np.exp(-z))),
        ("relu", lambda z: np.maximum(z, 0)),
        (jnp.sin, np.sin),
    ],
)
def test_equals_the_formula(name, function):
    net = MLP(3, (4, 6), 2, activation=name, rngs=nnx.Rngs(1))
    *hidden, last = [
        (np.asarray(layer.kernel.get_value()), np.asarray(layer.bias.get_value()) + 0.1)
        for layer in net.layers
    ]
    for layer in net.layers:
        layer.bias.set_value(layer.bias.get_value() + 0.1)
    units = np.asarray(X)
    for kernel, bias in hidden:
        units = function(units @ kernel + bias)
    np.testing.assert_allclose(net(X), units @ last[0] + last[1], rtol=1e-4, atol=1e-5)


def test_gelu_and_default():
    assert MLP(3, (4,), 1).activation == "swish"
    assert not np.allclose(MLP(3, (4,), 1, activation="gelu")(X), MLP(3, (4,), 1)(X))


def test_parameter_paths():
    state = nnx.to_flat_state(nnx.state(MLP(3, (4,), 2), nnx.Param))
    assert {".".join(map(str, path)): leaf.get_value().shape for path, leaf in state} == {
        "layers.0.kernel": (3, 4),
        "layers.0.bias": (4,),
        "layers.1.kernel": (4, 2),
        "layers.1.bias": (2,),
    }


def test_no_hidden_layer_is_linear():
    net = MLP(3, (), 1)
    np.testing.assert_allclose(net(2 * X), 2 * net(X), rtol=1e-5)


def test_default_weights_are_repeatable_and_numpy_inputs_work():
    np.testing.assert_array_equal(MLP(3, (4,), 1)(X), MLP(3, [4], 1)(np.asarray(X)))


def test_repr_and_pickle():
    net = MLP(3, (50, 50), 1, activation="tanh")
    assert repr(net) == "MLP(3, (50, 50), 1, activation='tanh')"
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net))(X), net(X))


@pytest.mark.parametrize("x", [jnp.ones((5, 4)), jnp.ones(5), jnp.array(1.0)])
def test_wrong_number_of_features(x):
    with pytest.raises(ValueError, match=r"x has shape .*takes 3 features on the last axis"):
        MLP(3, (4,), 1)(x)


def test_unknown_activation_lists_the_names():
    with pytest.raises(ValueError, match=r"one of \['swish', 'tanh', .*'leaky_relu'\].*got 'selu'"):
        MLP(3, (4,), 1, activation="selu")


@pytest.mark.parametrize("sizes", [(0, (4,), 1), (3, (4, 0), 1), (3, (4,), -1)])
def test_sizes_below_one(sizes):
    with pytest.raises(ValueError, match="must be at least 1"):
        MLP(*sizes)


def test_hidden_sizes_as_a_number(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"got 50; for one hidden layer of 50 units write \(50,\)"):
        MLP(3, 50, 1)
