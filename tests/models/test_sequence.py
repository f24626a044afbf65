"""models.SequenceClassifier and its masked cells."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpyro import handlers

import ppl_bnn
from ppl_bnn import datasets, models, priors
from ppl_bnn.models import MLP, SequenceClassifier
from ppl_bnn.models.recurrent import last_state, make_cell
from ppl_bnn.target import Target

CELLS = ["lstm", "gru"]
X = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)


@nnx.jit
def value_and_gradient(net, x, *others):
    def loss(net):
        out = net(x, *others)
        return jnp.sum(jnp.sin(out)), out

    gradient, out = nnx.grad(loss, has_aux=True)(net)
    return [out, *jax.tree.leaves(gradient)]


def check_equal(got, expected):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_equals_the_cell_step_by_step(cell):
    layer = make_cell(cell, 4, 5, nnx.Rngs(0))
    carry = layer.initialize_carry((3, 4), nnx.Rngs(0))
    for t in range(6):
        carry, hidden = layer(carry, X[:, t])
    np.testing.assert_allclose(last_state(layer, jnp.asarray(X)), hidden, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("filler", [0.0, 1e6, np.inf, np.nan])
@pytest.mark.parametrize(
    "steps",
    [(0, 1, 2, 3, 4, 5), (3, 4, 5, 6, 7, 8), (0, 2, 3, 5, 7, 8)],
    ids=["end", "start", "within"],
)
@pytest.mark.parametrize("cell", CELLS)
def test_padding_anywhere_never_counts(cell, steps, filler):
    """Output and gradient are those of the series without its padding."""
    net = SequenceClassifier(4, 5, 2, cell)
    padded = np.full((3, 9, 4), filler, np.float32)
    padded[:, steps] = X
    mask = np.zeros((3, 9), bool)
    mask[:, steps] = True
    check_equal(value_and_gradient(net, padded, mask), value_and_gradient(net, X))


def test_rows_of_different_length():
    net = SequenceClassifier(4, 5, 2)
    lengths = np.array([6, 2, 4])
    mask = np.arange(6) < lengths[:, None]
    out = net(X, mask)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(out[row], net(X[row : row + 1, :length])[0], rtol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_no_step_at_all(cell):
    net = SequenceClassifier(4, 5, 2, cell)
    np.testing.assert_array_equal(net(X, np.zeros((3, 6), bool)), 0)  # biases start at zero


@pytest.mark.parametrize("filler", [7.0, np.nan])
@pytest.mark.parametrize("cell", CELLS)
def test_missing_values_are_zeros_with_an_indicator(cell, filler):
    net = SequenceClassifier(4, 5, 2, cell, missing_values=True)
    observed = np.random.default_rng(1).random(X.shape) < 0.6
    holes = np.where(observed, X, np.float32(filler))
    zeros = np.where(observed, X, np.float32(0))
    series = np.concatenate([zeros, observed], axis=-1, dtype=np.float32)
    expected = net.dense(last_state(net.cell, jnp.asarray(series)))
    np.testing.assert_allclose(net(holes, None, observed), expected, rtol=1e-5)
    check_equal(
        value_and_gradient(net, holes, None, observed),
        value_and_gradient(net, zeros, None, observed),
    )
    # a measured zero is not a missing value
    assert np.any(np.abs(net(zeros, None, np.ones_like(observed)) - expected) > 1e-4)


def test_nan_is_missing_by_default():
    net = SequenceClassifier(4, 5, 2, missing_values=True)
    observed = np.random.default_rng(1).random(X.shape) < 0.6
    holes = np.where(observed, X, np.nan)
    np.testing.assert_array_equal(net(holes), net(X, None, observed))


def test_parameters():
    def shapes(**options):
        net = SequenceClassifier(4, 5, 2, **options)
        state = nnx.to_flat_state(nnx.state(net, nnx.Param))
        return {".".join(map(str, path)): leaf.get_value().shape for path, leaf in state}

    assert shapes() == {
        "cell.dense_i.kernel": (4, 20),
        "cell.dense_h.kernel": (5, 20),
        "cell.dense_h.bias": (20,),
        "dense.kernel": (5, 2),
        "dense.bias": (2,),
    }
    gru = shapes(cell="gru", missing_values=True)
    assert gru["cell.dense_i.kernel"] == (8, 15)
    assert gru["cell.dense_i.bias"] == (15,) and "cell.dense_h.bias" not in gru


@pytest.mark.parametrize("cell", CELLS)
def test_forward_and_backward(cell):
    net = SequenceClassifier(4, 5, 2, cell)
    out, *gradient = value_and_gradient(net, X)
    assert out.shape == (3, 2)
    assert all(np.isfinite(leaf).all() and np.any(leaf != 0) for leaf in gradient)


def test_repeatable_picklable_and_described():
    net = SequenceClassifier(4, 5, 2, "gru")
    np.testing.assert_array_equal(SequenceClassifier(4, 5, 2, "gru")(X), net(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net))(X), net(X))
    assert (
        repr(net) == "SequenceClassifier(4, 5, 2, 'gru', missing_values=False, static_features=0)"
    )


def test_float64_parameters():
    with jax.enable_x64(True):
        net = SequenceClassifier(4, 5, 2)
        nnx.update(net, jax.tree.map(lambda leaf: leaf.astype(jnp.float64), nnx.state(net)))
        assert net(X).dtype == jnp.float64


MASK = np.ones((3, 6), bool)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X[..., :3],), r"x has shape \(3, 6, 3\).*in_features=4"),
        ((X[0],), r"takes \(N, steps, 4\)"),
        ((X, MASK[:, :5]), r"mask has shape \(3, 5\), expected \(3, 6\)"),
        ((X, MASK[..., None]), "True where there is a step"),
        ((X, MASK.astype(float)), "mask must be bool.*pass mask > 0"),
        ((X, None, MASK), r"observed has shape \(3, 6\), expected \(3, 6, 4\)"),
        ((X, None, X > 0), "build it with missing_values=True"),
    ],
)
def test_wrong_inputs(args, message):
    with pytest.raises(ValueError, match=message):
        SequenceClassifier(4, 5, 2)(*args)


def test_unknown_cell():
    with pytest.raises(ValueError, match=r"`cell` must be one of \['lstm', 'gru'\], got 'rnn'"):
        SequenceClassifier(4, 5, 2, "rnn")


def test_values_that_count_must_be_finite():
    holes = X.copy()
    holes[1, 2, 3] = np.nan
    plain, with_gaps = SequenceClassifier(4, 5, 2), SequenceClassifier(4, 5, 2, missing_values=True)
    with pytest.raises(ValueError, match=r"1 values that are NaN .*index \(1, 2, 3\)"):
        plain.check_inputs(holes)
    mask = MASK.copy()
    mask[1, 2] = False
    plain.check_inputs(holes, mask)
    with_gaps.check_inputs(holes)
    with_gaps.check_inputs(holes, observed=~np.isnan(holes))
    with pytest.raises(ValueError, match="NaN or infinite"):
        with_gaps.check_inputs(holes, observed=np.ones_like(holes, bool))


def test_static_features_stand_beside_the_hidden_state():
    static = np.arange(6, dtype=np.float32).reshape(3, 2)
    plain = SequenceClassifier(4, 5, 2)
    net = SequenceClassifier(4, 5, 2, static_features=2)
    nnx.update(net.cell, nnx.state(plain.cell))
    kernel, bias = net.dense.kernel[...], net.dense.bias[...]
    hidden = last_state(plain.cell, jnp.asarray(X), None)
    expected = hidden @ kernel[:5] + static @ kernel[5:] + bias
    np.testing.assert_allclose(net(X, static=static), expected, rtol=1e-5, atol=1e-6)
    for wrong in (None, static[:, :1], static[:2]):
        with pytest.raises(ValueError, match=r"static_features=2 and x has 3 rows"):
            net(X, static=wrong)
    with pytest.raises(ValueError, match=r"static has shape \(3, 2\).*static_features=0"):
        plain(X, static=static)


def test_series_of_a_data_set_go_into_a_ready_model():
    series = datasets.Series(X, np.ones((3, 6), bool), X > 0, X[:, 0, :2])
    net = SequenceClassifier(4, 5, 2, missing_values=True, static_features=2)
    model = models.classification(net, priors.normal())
    trace = handlers.trace(handlers.seed(model, 0)).get_trace(series, np.array([0, 1, 0]))
    assert trace["y"]["fn"].logits.shape == (3, 2)


def test_a_model_may_be_given_nan_where_nothing_counts():
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.6, X, np.nan)
    net = SequenceClassifier(4, 5, 2, missing_values=True)
    model, y = models.classification(net, priors.normal()), np.array([0, 1, 0])
    target = Target(model, (holes, y), {})
    z = {name: jnp.full(leaf.shape, 0.3) for name, leaf in target.shapes().items()}
    value, gradient = jax.value_and_grad(lambda z: target.probe_terms(z).sum())(z)
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in gradient.values())
    draws = {name: np.full((2, *leaf.shape), 0.3, np.float32) for name, leaf in z.items()}
    assert np.isfinite(ppl_bnn.predict(draws, holes, model=model).probs).all()
    mask = np.ones((3, 6), bool)
    mask[2, :3] = False
    inputs = {"x": np.where(mask[..., None], X, np.nan), "mask": mask}
    Target(models.classification(SequenceClassifier(4, 5, 2), priors.normal()), (inputs, y), {})
    with pytest.raises(ValueError, match=r"x has 12 values that are NaN.*index \(2, 0, 0\)"):
        inputs["mask"] = np.ones((3, 6), bool)
        Target(models.classification(SequenceClassifier(4, 5, 2), priors.normal()), (inputs, y), {})
    with pytest.raises(ValueError, match="NaN or infinite, the first at index"):  # not by a network
        Target(models.regression(MLP(4, (), 1), priors.normal()), (holes[:, 0], y * 1.0), {})


def test_static_features_must_be_finite():
    net = SequenceClassifier(4, 5, 2, static_features=1)
    inputs = {"x": X, "static": np.array([[0.0], [np.nan], [1.0]])}
    with pytest.raises(ValueError, match=r"`x\['static'\]` has 1 entries that are NaN .*\(1, 0\)"):
        Target(models.classification(net, priors.normal()), (inputs, np.array([0, 1, 0])), {})
