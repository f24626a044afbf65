"""models.activations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_bnn.models import CNNLSTM, MLP, ResNet20FRN
from ppl_bnn.models.activations import activate

Z = np.linspace(-4, 4, 41)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("swish", Z / (1 + np.exp(-Z))),
        ("tanh", np.tanh(Z)),
        ("softplus", np.log1p(np.exp(Z))),
        ("sigmoid", 1 / (1 + np.exp(-Z))),
        ("mish", Z * np.tanh(np.log1p(np.exp(Z)))),
        ("elu", np.where(Z > 0, Z, np.expm1(Z))),
        ("sin", np.sin(Z)),
        ("relu", np.maximum(Z, 0)),
        ("leaky_relu", np.where(Z > 0, Z, 0.01 * Z)),
        (jnp.square, Z**2),
    ],
)
def test_equals_the_formula(name, formula):
    with jax.enable_x64(True):
        np.testing.assert_allclose(activate(name, jnp.asarray(Z)), formula, rtol=1e-12, atol=1e-15)


def test_gelu_is_near_its_definition():
    normal_cdf = 0.5 * (1 + jax.scipy.special.erf(Z / np.sqrt(2)))
    np.testing.assert_allclose(activate("gelu", jnp.asarray(Z)), Z * normal_cdf, atol=5e-4)


@pytest.mark.parametrize(
    "build",
    [
        lambda activation: MLP(3, (4,), 1, activation=activation),
        lambda activation: ResNet20FRN(width=1, activation=activation),
        lambda activation: CNNLSTM(10, activation=activation),
    ],
)
def test_unknown_name_suggests_the_nearest(build):
    with pytest.raises(
        ValueError,
        match=r"`activation` must be one of \['swish', .*\] or a callable, got 'swich'; "
        r"did you mean 'swish'\?",
    ):
        build("swich")


def test_name_like_no_other_lists_all():
    with pytest.raises(ValueError, match=r"one of \['swish', 'tanh', .*got 'xyz'$"):
        MLP(3, (4,), 1, activation="xyz")
