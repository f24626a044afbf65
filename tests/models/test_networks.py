"""The networks for images: sizes, shapes, gradients, refusals."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ppl_bnn.models import VGG16, LeNet, ResNet18, ResNet20FRN, ResNet50, WideResNet
from ppl_bnn.networks import as_network

NARROW = {
    "ResNet20FRN": lambda **k: ResNet20FRN(width=2, **k),
    "LeNet": lambda **k: LeNet(image_size=(32, 32), in_channels=3, width=2, **k),
    "VGG16": lambda **k: VGG16(width=2, hidden_size=4, **k),
    "ResNet18": lambda **k: ResNet18(width=2, **k),
    "WideResNet": lambda **k: WideResNet(10, 1, width=2, **k),
    "ResNet50": lambda **k: ResNet50(num_classes=10, width=2, stem="small", **k),
}
# a gradient of the deep ones takes more than a few seconds to compile
SLOW_TO_COMPILE = [
    name if name in ("LeNet", "WideResNet") else pytest.param(name, marks=pytest.mark.slow)
    for name in NARROW
]
X = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))


def shapes(build):
    """Parameter path -> shape, without making the arrays."""
    state = nnx.to_flat_state(nnx.state(nnx.eval_shape(build), nnx.Param))
    return {".".join(map(str, path)): leaf.get_value().shape for path, leaf in state}


def count(build):
    return sum(int(np.prod(shape)) for shape in shapes(build).values())


def evaluate(net):
    """Loss, logits and gradient by parameter, in one compiled call."""
    network = as_network(net)

    def loss(weights, x):
        logits = network.apply(weights, x)
        return -jnp.sum(jax.nn.log_softmax(logits)[:, 0]), logits

    call = jax.jit(jax.value_and_grad(loss, has_aux=True))
    return lambda x: call(network.init(None), x)


def test_numbers_of_parameters():
    assert count(ResNet20FRN) == 274_042
    assert count(lambda: ResNet20FRN(100)) == 279_892
    assert count(LeNet) == 61_706


@pytest.mark.parametrize(
    ("build", "millions", "channels"),
    [
        (lambda: WideResNet(28, 10), 36.461, 19_581),
        (ResNet50, 25.503, 52_139),
        (ResNet18, 11.164, None),
        (VGG16, 15.240, None),
    ],
)
def test_kernels_as_the_reference_counts(build, millions, channels):
    kernels = [shape for path, shape in shapes(build).items() if path.endswith(".kernel")]
    assert round(sum(np.prod(k) for k in kernels) / 1e6, 3) == round(millions, 3)
    if channels is not None:
        assert sum(k[-2] + k[-1] for k in kernels) == channels


def test_biases_only_without_normalisation():
    for norm in ("frn", "group"):
        assert not [p for p in shapes(lambda n=norm: ResNet18(norm=n)) if p.endswith("conv.bias")]
    assert "conv.bias" in shapes(lambda: ResNet18(norm="none"))
    assert "convs.0.bias" in shapes(lambda: VGG16(norm="none"))


def test_parameter_paths_of_resnet20():
    paths = shapes(ResNet20FRN)
    assert paths["conv.kernel"] == (3, 3, 3, 16)
    assert paths["norm.threshold.tau"] == (16,)
    assert paths["blocks.0.convs.1.kernel"] == (3, 3, 16, 16)
    assert paths["blocks.3.shortcut.kernel"] == (1, 1, 16, 32)
    assert paths["blocks.3.shortcut_norm.gamma"] == (32,)
    assert paths["blocks.8.norms.1.beta"] == (64,)
    assert paths["dense.kernel"] == (64, 10)
    assert {int(p.split(".")[1]) for p in paths if "shortcut" in p} == {3, 6}


@pytest.mark.parametrize("name", SLOW_TO_COMPILE)
def test_forward_and_backward(name):
    net = NARROW[name]()
    call = evaluate(net)
    (loss, logits), gradient = call(X)
    assert logits.shape == (2, 10) and np.isfinite(loss)
    for path, leaf in gradient.items():
        assert np.isfinite(leaf).all(), path
        assert np.any(leaf != 0), path
    # the same again, and another second row leaves the first as it is
    np.testing.assert_array_equal(call(X)[0][1], logits)
    other = call(X.at[1].multiply(-2.0))[0][1]
    np.testing.assert_allclose(other[0], logits[0], rtol=1e-5, atol=1e-6)
    assert np.all(other[1] != logits[1])


@pytest.mark.parametrize("name", SLOW_TO_COMPILE)
def test_repeatable_picklable_and_described(name):
    net, again, other = NARROW[name](), NARROW[name](), NARROW[name](rngs=nnx.Rngs(1))
    copy = pickle.loads(pickle.dumps(net))
    graph, state = nnx.split(net)
    for same in (again, copy):
        assert nnx.graphdef(same) == graph
        for a, b in zip(*map(jax.tree.leaves, (state, nnx.state(same))), strict=True):
            np.testing.assert_array_equal(a, b)
    pairs = zip(*map(jax.tree.leaves, (state, nnx.state(other))), strict=True)
    assert sum(np.any(a != b) for a, b in pairs) == sum("kernel" in p for p in shapes(NARROW[name]))
    assert repr(net).startswith(f"{name}(10") and len(repr(net)) < 100


@pytest.mark.parametrize("norm", ["frn", "group", "none", "batch"])
@pytest.mark.parametrize(
    "build",
    [
        *(pytest.param(network, marks=pytest.mark.slow) for network in (ResNet18, ResNet50)),
        VGG16,
        partial(WideResNet, 10, 1),
    ],
)
def test_every_normalisation(build, norm):
    """Gives logits, and finds its parameters."""
    net = nnx.eval_shape(lambda: build(norm=norm, width=2))
    assert jax.eval_shape(lambda net, x: net(x), net, X).shape[0] == 2
    names = {path.split(".")[-1] for path in shapes(lambda: build(norm=norm, width=2))}
    expected = {
        "frn": {"gamma", "beta", "tau"},
        "group": {"scale"},
        "none": set(),
        "batch": {"scale"},
    }
    assert names == {"kernel", "bias"} | expected[norm]


@pytest.mark.parametrize("name", NARROW)
def test_smooth_by_default(name):
    """No maximum but that of the thresholds, which ResNet-20-FRN has."""
    net = NARROW[name]()
    program = str(jax.make_jaxpr(lambda x: net(x))(X))
    assert program.count(" = max ") == sum("tau" in path for path in shapes(NARROW[name]))
    assert "reduce_max" not in program and "reduce_window_max" not in program


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["average", "max"])
def test_large_images(pooling):
    net = nnx.eval_shape(lambda: ResNet50(7, pooling=pooling))
    x = jnp.ones((1, 224, 224, 3))
    assert jax.eval_shape(lambda net, x: net(x), net, x).shape == (1, 7)
    program = str(jax.make_jaxpr(lambda net, x: net(x))(net, x))
    assert "f32[1,56,56,64]" in program and "f32[1,7,7,2048]" in program


@pytest.mark.parametrize("name", NARROW)
def test_channels_first_are_refused(name):
    with pytest.raises(ValueError, match=r"shape \(2, 3, 32, 32\).*pass x.transpose\(0, 2, 3, 1\)"):
        NARROW[name]()(jnp.moveaxis(X, -1, 1))


@pytest.mark.parametrize(
    ("net", "shape", "cure"),
    [
        (NARROW["ResNet18"], (2, 32, 32, 1), "channels build it with in_channels"),
        (NARROW["ResNet18"], (32, 32, 3), r"pass x\[None\]"),
        (LeNet, (2, 28, 28), r"pass x\[..., None\]"),
        (LeNet, (2, 784), r"images of shape \(N, height, width, 1\); reshape x"),
        (LeNet, (2, 32, 32, 1), "built for images of \\(28, 28\\)"),
        (NARROW["VGG16"], (2, 16, 16, 3), "inputs of the network are too small"),
    ],
)
def test_wrong_shapes(net, shape, cure):
    with pytest.raises(ValueError, match=cure):
        net()(jnp.ones(shape))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ResNet20FRN(0), "`num_classes` must be an integer of at least 1, got 0"),
        (lambda: ResNet18(width=-1), "`width` must be an integer of at least 1, got -1"),
        (lambda: WideResNet(27, 10), r"depth must be 10, 16, 22, 28 .*got 27"),
        (lambda: ResNet50(stem="large"), r"`stem` must be one of \['imagenet', 'small'\]"),
        (lambda: VGG16(pooling="maximum"), "did you mean 'max'"),
        (lambda: LeNet(image_size=(8, 28)), "at least 12 each"),
    ],
)
def test_wrong_options(build, message, as_users_run):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "size"),
    [
        (ResNet20FRN, 32),
        (VGG16, 32),
        (ResNet18, 32),
        (lambda: WideResNet(28, 10), 32),
        (ResNet50, 64),
    ],
)
def test_full_width(build, size):
    """One gradient on two images."""
    x = jax.random.normal(jax.random.key(0), (2, size, size, 3))
    (loss, _), gradient = evaluate(build())(x)
    assert np.isfinite(loss)
    assert all(np.isfinite(leaf).all() for leaf in gradient.values())
