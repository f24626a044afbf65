"""The warning about activations with a kink."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.kinks import find_kinks

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
Y = X[:, 0]


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.relu(linen.Dense(3)(x)))


NETWORKS = {
    "zoo": models.MLP(2, (3,), 1, activation="relu"),
    "nnx": nnx.Sequential(
        nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.leaky_relu, nnx.Linear(3, 1, rngs=nnx.Rngs(1))
    ),
    "linen": Linen(),
    "equinox": eqx.nn.MLP(2, 1, 3, 1, activation=jax.nn.relu, key=jax.random.key(0)),
}


def hmc(model, **options):
    options = {"num_steps": 1, "step_size": 0.01, "adapt_step_size": False} | options
    return ppl_bnn.HMC(model, warm_start=0, inverse_mass_matrix="identity", **options)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_hmc_warns_of_a_relu(name, chunk_size):
    kernel = hmc(models.regression(NETWORKS[name], priors.normal()), chunk_size=chunk_size)
    kind = "leaky_relu" if name == "nnx" else "relu"
    with pytest.warns(UserWarning, match=f"network uses {kind}: .* smooth activation"):
        kernel._target_for((X, Y), {})


def test_it_warns_once_for_a_run():
    kernel = hmc(models.regression(NETWORKS["zoo"], priors.normal()))
    with pytest.warns(UserWarning) as caught:
        kernel._target_for((X, Y), {})
        kernel._target_for((X, Y), {})
    assert len([w for w in caught if "kink" in str(w.message)]) == 1


@pytest.mark.parametrize("activation", ["swish", "tanh", "gelu", "softplus", "sigmoid"])
def test_smooth_activations_do_not_warn(activation):
    net = models.MLP(2, (3,), 1, activation=activation)
    kernel = hmc(models.regression(net, priors.normal()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel._target_for((X, Y), {})


def test_kinks_inside_loops_and_maps_are_found():
    def function(x):
        def body(carry, row):
            return carry + jax.vmap(jax.nn.relu6)(row).sum(), None

        return jax.lax.cond(x.sum() > 0, lambda: jax.lax.scan(body, 0.0, x)[0], lambda: 0.0)

    assert find_kinks(jax.grad(function), jnp.ones((3, 2))) == {"relu6"}
    assert find_kinks(lambda x: jnp.tanh(x), jnp.ones(3)) == set()


def test_a_model_without_a_network_does_not_warn():
    def model(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)

    hmc(model)._target_for((X, Y), {})
