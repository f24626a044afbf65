"""Rank-1 layers against the layer with its perturbed weight formed, and the converter."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro import handlers

import ppl_bnn
from ppl_bnn import models
from ppl_bnn.models.rank1 import PERTURBATIONS
from ppl_bnn.priors import fan_in_normal

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
CONV = {"padding": "SAME", "strides": 2}
LAYERS = {
    "dense": (lambda: nnx.Linear(3, 4, rngs=nnx.Rngs(1)), (5, 3)),
    "dense on steps": (lambda: nnx.Linear(3, 4, rngs=nnx.Rngs(1)), (5, 6, 3)),
    "dense without bias": (lambda: nnx.Linear(3, 4, use_bias=False, rngs=nnx.Rngs(1)), (5, 3)),
    "conv 1d": (lambda: nnx.Conv(3, 4, (3,), rngs=nnx.Rngs(1), **CONV), (5, 7, 3)),
    "conv 2d": (lambda: nnx.Conv(3, 4, (3, 2), rngs=nnx.Rngs(1), **CONV), (5, 7, 6, 3)),
    "dense of one feature": (lambda: nnx.Linear(1, 4, rngs=nnx.Rngs(1)), (5, 1)),
    "conv of one channel": (lambda: nnx.Conv(1, 4, (3, 2), rngs=nnx.Rngs(1), **CONV), (5, 7, 6, 1)),
    "conv 3d": (lambda: nnx.Conv(3, 4, (2, 2, 2), padding=1, rngs=nnx.Rngs(1)), (5, 3, 4, 3, 3)),
}


def normals(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def with_values(layer, **values):
    layer = nnx.clone(layer)
    for name, value in values.items():
        getattr(layer, name)[...] = value
    return layer


def explicit(layer, perturbation, r, s, x):
    """What the layer gives with its perturbed weight formed, or with moved units."""
    kernel = layer.kernel[...]
    if perturbation == "shift":
        units = layer(x + s)
        return units + r
    outer = s[:, None] * r
    perturbed = kernel * outer if perturbation == "multiplicative" else kernel + outer
    return with_values(layer, kernel=perturbed)(x)


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_rank1_layer_is_the_layer_with_its_perturbed_weight(name, perturbation):
    make, shape = LAYERS[name]
    layer, x = make(), normals(*shape)
    if layer.bias is not None:
        layer.bias[...] = normals(4)
    net = models.Rank1(layer, perturbation=perturbation)
    of_network = ppl_bnn.networks.as_network(net)
    values = of_network.init(None)
    np.testing.assert_allclose(net(x), layer(x), rtol=1e-5, atol=1e-6)

    # components, each with one pair of vectors for all rows, or one for each row
    r, s = 1 + normals(2, shape[0], 4), 1 + normals(2, shape[0], shape[-1])
    one_pair = jax.vmap(lambda r, s: of_network.apply(values | {"r": r, "s": s}, x))
    by_row = one_pair(r, s)
    for k in range(2):
        np.testing.assert_allclose(
            one_pair(r[:, 0], s[:, 0])[k],
            explicit(layer, perturbation, r[k, 0], s[k, 0], x),
            rtol=1e-4,
            atol=1e-5,
        )
        for n in range(shape[0]):
            expected = explicit(layer, perturbation, r[k, n], s[k, n], x[n : n + 1])[0]
            np.testing.assert_allclose(by_row[k, n], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("perturbation", ["multiplicative", "shift"])
@pytest.mark.parametrize("vector", ["r", "s"])
def test_one_vector_alone(perturbation, vector):
    layer, x = nnx.Linear(3, 4, rngs=nnx.Rngs(1)), normals(5, 3)
    net = models.rank1(layer, perturbation=perturbation, vectors=vector)
    both = models.Rank1(layer, perturbation=perturbation)
    other = {"r": "s", "s": "r"}[vector]
    values = ppl_bnn.networks.as_network(net).init(None)
    assert set(values) == {"layer.kernel", "bias", vector} and getattr(net, other) is None
    getattr(both, vector)[...] = getattr(net, vector)[...] = 1 + normals(values[vector].size)
    np.testing.assert_allclose(net(x), both(x), rtol=1e-6)
    with pytest.raises(ValueError, match="adds the outer product of both vectors, got vectors="):
        models.rank1(layer, perturbation="additive", vectors=vector)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_rank1_cell_is_the_cell_with_its_perturbed_weights(cell):
    net = models.SequenceClassifier(3, 4, 2, cell)
    x = normals(5, 6, 3)
    perturbed = models.rank1(net)
    expected = nnx.clone(net)
    for name in ("dense_i", "dense_h"):
        layer, plain = getattr(perturbed.cell, name), getattr(expected.cell, name)
        layer.r[...], layer.s[...] = 1 + normals(layer.r.size), 1 + normals(layer.s.size)
        plain.kernel[...] = plain.kernel[...] * layer.s[...][:, None] * layer.r[...]
    np.testing.assert_allclose(perturbed(x), expected(x), rtol=1e-4, atol=1e-5)
    assert np.abs(perturbed(x) - net(x)).max() > 0.01


NETWORKS = {
    "MLP": (lambda: models.MLP(3, (5, 5), 2), (4, 3)),
    "LeNet": (lambda: models.LeNet(), (2, 28, 28, 1)),
    "LSTM": (lambda: models.SequenceClassifier(3, 4, 2, "lstm"), (4, 6, 3)),
    "GRU": (lambda: models.SequenceClassifier(3, 4, 2, "gru"), (4, 6, 3)),
    "ResNet20FRN": (lambda: models.ResNet20FRN(), (2, 32, 32, 3)),
}


@pytest.mark.parametrize(
    ("name", "perturbation"),
    [(name, "multiplicative") for name in NETWORKS]
    + [("LSTM", name) for name in PERTURBATIONS[1:]],
)
def test_a_converted_network_gives_the_same_outputs(name, perturbation):
    make, shape = NETWORKS[name]
    net, x = make(), normals(*shape)
    converted = models.rank1(net, perturbation=perturbation)
    np.testing.assert_allclose(converted(x), net(x), rtol=1e-4, atol=1e-4)
    assert not models.rank1_layers(net).rank1


def test_what_is_left_alone_is_named():
    net = models.rank1(models.CNNLSTM(100))
    found = models.rank1_layers(net)
    assert found.rank1 == ("conv", "dense", "lstm.dense_h", "lstm.dense_i")
    assert found.left_alone == ("embedding",)
    left = models.rank1_layers(models.rank1(models.ResNet20FRN())).left_alone
    assert "blocks.0.norms.0" in left and all("norm" in path for path in left)


@pytest.mark.parametrize(
    ("make", "expected"),
    [(lambda: models.WideResNet(28, 10, num_classes=10), 19_581), (models.ResNet50, 52_139)],
    ids=["WRN-28-10", "ResNet-50"],
)
def test_number_of_parameters(make, expected):
    """Sum of in and out features of all kernels: Dusenberry et al.'s two networks."""
    with jax.default_device(jax.devices("cpu")[0]):
        net = nnx.eval_shape(lambda: models.rank1(make()))
    sizes = {
        path: np.prod(value.shape, dtype=int)
        for path, value in nnx.to_flat_state(nnx.state(net, nnx.Param))
    }
    vectors = sum(size for path, size in sizes.items() if path[-1] in ("r", "s"))
    kernels = sum(size for path, size in sizes.items() if path[-1] == "kernel")
    assert vectors == expected
    overhead = {19_581: 0.0043, 52_139: 0.0164}[expected]  # mean and scale, four components
    assert 8 * vectors / kernels == pytest.approx(overhead, abs=5e-5)


def test_layers_in_containers_and_a_layer_that_is_used_twice():
    class Tied(nnx.Module):
        def __init__(self):
            self.first = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
            last = nnx.Sequential(nnx.tanh, nnx.Linear(3, 3, rngs=nnx.Rngs(1)))
            self.blocks = nnx.List([self.first, nnx.Dict(last=last)])

        def __call__(self, x):
            return self.blocks[1].last(self.blocks[0](self.first(x)))

    net, x = Tied(), normals(2, 3)
    converted = models.rank1(net)
    assert converted.first is converted.blocks[0]
    assert len(models.rank1_layers(converted).rank1) == 2
    np.testing.assert_allclose(converted(x), net(x), rtol=1e-5, atol=1e-6)


def test_vectors_are_clipped():
    net = models.Rank1(nnx.Linear(1, 1, use_bias=False, rngs=nnx.Rngs(0)), clip=10.0)
    net.r[...] = jnp.full(1, 1e30)
    unclipped = with_values(net, r=jnp.full(1, 10.0))
    x = jnp.ones((1, 1))
    np.testing.assert_array_equal(net(x), unclipped(x))


def test_an_ordinary_model_with_priors_on_all_three():
    net = models.rank1(models.MLP(3, (4,), 1))

    prior = {"*.r": dist.Normal(1, 0.1), "*.s": dist.Normal(1, 0.1), "*": fan_in_normal()}
    model = models.regression(net, prior, noise=0.5)
    trace = handlers.trace(handlers.seed(model, KEY)).get_trace(normals(5, 3), normals(5))
    assert {"net/layers.0.r", "net/layers.0.s", "net/layers.0.layer.kernel"} <= set(trace)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: models.rank1(nnx.Embed(3, 2, rngs=nnx.Rngs(0))), ValueError, "no flax.nnx.Linear"),
        (lambda: models.rank1(models.MLP), TypeError, "got the class MLP"),
        (lambda: models.rank1(models.rank1(models.MLP(2, (2,), 1))), ValueError, "already"),
        (lambda: models.rank1(models.MLP(2, (2,), 1), clip=-1.0), ValueError, "clip must be"),
        (
            lambda: models.rank1(models.MLP(2, (2,), 1), perturbation="multiplication"),
            ValueError,
            "did you mean 'multiplicative'",
        ),
        (lambda: models.Rank1(nnx.Embed(3, 2, rngs=nnx.Rngs(0))), TypeError, "got a Embed"),
        (
            lambda: models.Rank1(
                nnx.Conv(4, 4, (3,), feature_group_count=2, rngs=nnx.Rngs(0)),
                perturbation="additive",
            ),
            ValueError,
            "feature_group_count=2",
        ),
        (
            lambda: with_shape((7, 4))(jnp.ones((5, 3))),
            ValueError,
            r"r has shape \(7, 4\)",
        ),
    ],
)
def test_what_cannot_be(call, error, message):
    with pytest.raises(error, match=message):
        call()


def with_shape(shape):
    net = models.Rank1(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    of_network = ppl_bnn.networks.as_network(net)
    values = of_network.init(None)
    return lambda x: of_network.apply(values | {"r": jnp.ones(shape)}, x)
