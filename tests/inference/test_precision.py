"""The Metropolis test in float32, at 100,000 rows and a potential energy of a million."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ppl_bnn import models, priors
from ppl_bnn.inference import hmc
from ppl_bnn.inference.mass_matrix import kinetic_energy, make_metric, sample_momentum
from ppl_bnn.inference.start import descend
from ppl_bnn.target import Target

NUM_ROWS, NUM_PAIRS, NUM_STEPS = 100_000, 40, 20
STEP_SIZE = 6e-5  # energy errors of order one
# a fifth of the data's own noise, which makes the potential energy about ten a row
NOISE = 0.05


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 4))
    y = np.sin(x @ rng.normal(size=4)) + 0.24 * rng.normal(size=NUM_ROWS)
    return x.astype(np.float32), y.astype(np.float32)


@pytest.fixture(scope="module")
def model():
    return models.regression(models.MLP(4, (10,), 1), priors.fan_in_normal(), noise=NOISE)


@pytest.fixture(scope="module")
def pairs(data, model):
    """Start and end, position and momentum, of trajectories in float32."""
    target = Target(model, data, {})
    log_density = target.log_density(target.data.read())
    position = {
        name: 0.3 * jax.random.normal(jax.random.key(i), shape.shape)
        for i, (name, shape) in enumerate(target.shapes().items())
    }
    metric = make_metric(jax.tree.map(jnp.ones_like, position))

    @jax.jit
    def trajectory(key, state):
        momentum = sample_momentum(key, metric, state.position)
        return momentum, *hmc.leapfrog(log_density, metric, state, momentum, STEP_SIZE, NUM_STEPS)

    position = jax.jit(lambda q: descend(log_density, q, metric.diagonal, 500))(position)
    state = hmc.init(position, log_density)
    found = []
    for key in jax.random.split(jax.random.key(0), NUM_PAIRS):
        momentum, end, end_momentum = trajectory(key, state)
        found.append(((state.position, momentum), (end.position, end_momentum)))
        state = end
    return found


def evaluate(pairs, data, model, dtype, chunk_size=None):
    """For each pair what `hmc.step` makes of these very end points, and both total energies."""

    def cast(tree):
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), dtype), tree)

    x, y = (np.asarray(array, dtype) for array in data)
    target = Target(model, (x, y), {}, chunk_size=chunk_size)
    log_density = target.log_density(target.data.read())
    state_at = jax.jit(lambda position: hmc.init(position, log_density))
    metric = make_metric(cast(jax.tree.map(jnp.ones_like, pairs[0][0][0])))
    infos, energies = [], []
    for (start, momentum), (end, end_momentum) in cast(pairs):
        first, last = state_at(start), state_at(end)
        assert first.terms.dtype == dtype
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hmc, "sample_momentum", lambda *_, p=momentum: p)
            patch.setattr(hmc, "leapfrog", lambda *_, end=(last, end_momentum): end)
            _, info = hmc.step(
                jax.random.key(0), first, log_density, metric=metric, step_size=0.0, num_steps=0
            )
        infos.append(info)
        ends = ((first, momentum), (last, end_momentum))
        energies.append([kinetic_energy(metric, p) - jnp.sum(s.terms) for s, p in ends])
    accept_prob = np.array([float(info.accept_prob) for info in infos])
    energy_error = np.array([float(info.energy_error) for info in infos])
    return accept_prob, energy_error, np.array(energies)


@pytest.fixture(scope="module")
def exact(pairs, data, model):
    with jax.enable_x64(True):
        return evaluate(pairs, data, model, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [None, 8192])
def test_acceptance_in_float32_is_that_of_float64(chunk_size, exact, pairs, data, model):
    accept_prob, energy_error, energies = exact
    assert 5e5 < energies.mean() < 2e6
    assert 0.3 < np.abs(energy_error).mean() < 3
    assert 0.3 < accept_prob.mean() < 0.95

    in_float32, _, totals = evaluate(pairs, data, model, np.float32, chunk_size)
    error = np.abs(in_float32 - accept_prob).mean()
    of_totals = np.abs(np.exp(np.minimum(totals[:, 0] - totals[:, 1], 0)) - accept_prob).mean()
    print(f"mean |error| of the acceptance probability: {error:.4f}; of totals: {of_totals:.4f}")
    assert error < 0.01
    assert of_totals > 2 * error  # without the difference term by term, precision is lost
