"""The pure core: the integrator's geometry, and known posteriors through `MCMC`."""

import math

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import ppl_bnn
from ppl_bnn.inference import hmc
from ppl_bnn.inference.mass_matrix import (
    kinetic_difference,
    kinetic_energy,
    make_metric,
    parse_inverse_mass_matrix,
    sample_momentum,
    velocity,
)


def banana(position):
    a, b = position["a"], position["b"]
    return jnp.stack([-0.5 * jnp.sum(a**2), -jnp.sum((b - a**2) ** 2)])


POSITION = {"a": jnp.array([0.3, -0.8]), "b": jnp.array([1.0, 0.2])}
MOMENTUM = {"a": jnp.array([-1.0, 0.4]), "b": jnp.array([0.7, 0.1])}
METRICS = {
    "diagonal": make_metric({"a": jnp.array([0.5, 2.0]), "b": jnp.array([1.0, 0.3])}),
    "dense": make_metric(
        {"b": jnp.array([1.0, 0.3])}, {("a",): jnp.array([[1.0, 0.4], [0.4, 0.5]])}
    ),
}


def f64(tree):
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), tree)


@pytest.mark.parametrize("metric", METRICS)
def test_leapfrog_is_reversible(metric):
    with jax.enable_x64(True):
        metric, position, momentum = f64((METRICS[metric], POSITION, MOMENTUM))
        state = hmc.init(position, banana)
        end, end_momentum = hmc.leapfrog(banana, metric, state, momentum, 0.1, 25)
        back = jax.tree.map(jnp.negative, end_momentum)
        again, again_momentum = hmc.leapfrog(banana, metric, end, back, 0.1, 25)
        for name in position:
            assert not np.allclose(end.position[name], position[name], atol=0.1)
            np.testing.assert_allclose(again.position[name], position[name], atol=1e-12)
            np.testing.assert_allclose(again_momentum[name], -momentum[name], atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_leapfrog_preserves_volume(metric):
    with jax.enable_x64(True):
        metric, position, momentum = f64((METRICS[metric], POSITION, MOMENTUM))
        flat, unravel = jax.flatten_util.ravel_pytree((position, momentum))

        def move(flat):
            position, momentum = unravel(flat)
            state = hmc.init(position, banana)
            end, end_momentum = hmc.leapfrog(banana, metric, state, momentum, 0.1, 7)
            return jax.flatten_util.ravel_pytree((end.position, end_momentum))[0]

        jacobian = jax.jacfwd(move)(flat)
        assert not np.allclose(jacobian, np.eye(8), atol=0.1)
        np.testing.assert_allclose(abs(jnp.linalg.det(jacobian)), 1.0, rtol=1e-10)


def test_energy_error_shrinks_with_the_square_of_the_step():
    with jax.enable_x64(True):
        metric, position, momentum = f64((METRICS["dense"], POSITION, MOMENTUM))
        state = hmc.init(position, banana)

        def error(step_size):
            steps = round(1.0 / step_size)
            end, p = hmc.leapfrog(banana, metric, state, momentum, step_size, steps)
            gain = jnp.sum(end.terms - state.terms)
            return float(kinetic_difference(metric, p, momentum) - gain)

        assert abs(error(0.01) / error(0.005)) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("metric", METRICS)
def test_momentum_has_covariance_temperature_times_mass(metric):
    metric = METRICS[metric]
    draws = jax.vmap(lambda key: sample_momentum(key, metric, POSITION, 0.5))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    flat = np.concatenate([draws["a"], draws["b"]], axis=1)
    inverse = np.zeros((4, 4))
    for i in range(4):
        unit = np.eye(4, dtype=np.float32)[i]
        moved = velocity(metric, {"a": jnp.array(unit[:2]), "b": jnp.array(unit[2:])})
        inverse[i] = np.concatenate([moved["a"], moved["b"]])
    mass = np.linalg.inv(inverse)
    scale = np.sqrt(np.outer(np.diag(mass), np.diag(mass)))
    # standard error of a covariance: sqrt((1 + rho^2) / n) <= sqrt(2 / n), in units of the scales
    np.testing.assert_array_less(
        np.abs(np.cov(flat.T) - 0.5 * mass) / (0.5 * scale), 4.5 * np.sqrt(2 / 20_000)
    )


def test_kinetic_difference_is_the_difference_of_kinetic_energies():
    other = jax.tree.map(lambda p: 1.5 * p + 0.2, MOMENTUM)
    for metric in METRICS.values():
        expected = kinetic_energy(metric, other) - kinetic_energy(metric, MOMENTUM)
        np.testing.assert_allclose(kinetic_difference(metric, other, MOMENTUM), expected, rtol=1e-5)


def test_rejection_keeps_the_state_and_a_nan_is_a_rejection():
    def cliff(position):
        return jnp.where(position["a"] > 0, jnp.nan, -0.5 * position["a"] ** 2)

    metric = make_metric({"a": jnp.ones(())})
    state = hmc.init({"a": jnp.array(-0.1)}, cliff)
    keys = jax.random.split(jax.random.key(0), 50)
    kept, info = jax.vmap(
        lambda key: hmc.step(key, state, cliff, metric=metric, step_size=1.0, num_steps=2)
    )(keys)
    rejected = ~np.asarray(info.is_accepted)
    assert 5 < rejected.sum() < 45
    np.testing.assert_array_equal(kept.position["a"][rejected], state.position["a"])
    assert np.isfinite(kept.position["a"]).all()
    assert np.isfinite(info.energy).all()


def test_core_needs_no_dtype_promotion_and_reuses_no_key():
    with jax.numpy_dtype_promotion("strict"), jax.debug_key_reuse(True):
        metric = METRICS["dense"]
        state = hmc.init(POSITION, banana)
        hmc.step(jax.random.key(0), state, banana, metric=metric, step_size=0.1, num_steps=3)


# known posteriors ----------------------------------------------------------------------------


def check_moments(draws, mean, covariance):
    """Mean and covariance of draws (chain, draw, d), each within its Monte Carlo error."""
    draws = np.asarray(draws, float)
    d = draws.shape[-1]
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    white = (draws - mean) @ root.T  # standard normal, if all is well

    def z_scores(values, expected):
        flat = values.reshape(*values.shape[:2], -1)
        ess = np.array([float(az.ess(flat[..., j], method="mean")) for j in range(flat.shape[-1])])
        spread = flat.std((0, 1))
        return (flat.mean((0, 1)) - expected) / (spread / np.sqrt(ess))

    pairs = np.concatenate([z_scores(white, 0.0), z_scores(white**2, 1.0)])
    if d <= 10:
        i, j = np.triu_indices(d, 1)
        pairs = np.concatenate([pairs, z_scores(white[..., i] * white[..., j], 0.0)])
    # the largest of up to 100 standard normals exceeds 4.5 once in 1,500 runs
    assert np.abs(pairs).max() < 4.5
    # and their mean square is about 1: tighter than each alone
    assert np.mean(pairs**2) < 1 + 5 * math.sqrt(2 / len(pairs))


def run(kernel, *args, num_samples=1000, num_warmup=300, num_chains=4, seed=0):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), *args)
    return mcmc


RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 6)).astype(np.float32)
Y = (X @ RNG.normal(size=6) + 0.5 * RNG.normal(size=80)).astype(np.float32)
SCALE = np.array([0.5, 1.0, 2.0, 1.0, 0.3, 1.0])


def linear_regression(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, jnp.asarray(SCALE, jnp.float32)).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


COVARIANCE = np.linalg.inv(np.diag(SCALE**-2) + X.T @ X / 0.25)
DENSE = (COVARIANCE + 0.01 * np.eye(6)).astype(np.float32)
OPTIONS = {
    "prior": {},  # and all else by default; the others are quicker to compile
    "identity": {"inverse_mass_matrix": "identity"},
    "vector": {"inverse_mass_matrix": np.diag(COVARIANCE).astype(np.float32)},
    "matrix": {"inverse_mass_matrix": DENSE},
    "dictionary": {"inverse_mass_matrix": {("w",): DENSE}},
    "adapted": {"adapt_mass_matrix": True},
    "chunked": {"chunk_size": 30},
    "fixed number of steps": {"num_steps": 20},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_conjugate_linear_regression(options):
    quick = {"step_size": 0.1, "warm_start": 0} if OPTIONS[options] else {}
    mcmc = run(ppl_bnn.HMC(linear_regression, **OPTIONS[options], **quick), X, Y)
    mean = COVARIANCE @ X.T @ Y / 0.25
    check_moments(mcmc.get_samples(group_by_chain=True)["w"], mean, COVARIANCE)


def test_tempered_linear_regression():
    mcmc = run(ppl_bnn.HMC(linear_regression, temperature=0.25, step_size=0.1, warm_start=0), X, Y)
    mean = COVARIANCE @ X.T @ Y / 0.25
    check_moments(mcmc.get_samples(group_by_chain=True)["w"], mean, 0.25 * COVARIANCE)


def gaussian_covariance(d):
    """Correlated, standard deviations from 0.3 to 3."""
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(d, d)))
    return rotation @ np.diag(np.geomspace(0.1, 10, d)) @ rotation.T


GAUSSIAN_50 = gaussian_covariance(50)


def gaussian_50():
    covariance = jnp.asarray(GAUSSIAN_50, jnp.float32)
    numpyro.sample("x", dist.MultivariateNormal(0.0, covariance))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inverse_mass_matrix": "identity"},
        {"inverse_mass_matrix": np.diag(GAUSSIAN_50).astype(np.float32)},
        {"inverse_mass_matrix": GAUSSIAN_50.astype(np.float32)},
        {"adapt_mass_matrix": True, "trajectory_length": 3.0},
    ],
    ids=["prior", "identity", "vector", "matrix", "adapted"],
)
def test_correlated_gaussian(options):
    mcmc = run(ppl_bnn.HMC(gaussian_50, warm_start=0, **options))
    check_moments(mcmc.get_samples(group_by_chain=True)["x"], np.zeros(50), GAUSSIAN_50)


def test_temperature_leaves_the_jacobian_alone():
    def model():
        numpyro.sample("s", dist.HalfNormal(1.0))

    mcmc = run(ppl_bnn.HMC(model, temperature=0.25, step_size=0.1, warm_start=0), num_samples=1000)
    draws = mcmc.get_samples(group_by_chain=True)["s"]
    error = float(jnp.std(draws)) / math.sqrt(float(az.ess(np.asarray(draws), method="mean")))
    # HalfNormal(1/2); with a tempered Jacobian the mean would be 0.94
    assert float(draws.mean()) == pytest.approx(0.5 * math.sqrt(2 / math.pi), abs=4 * error)


# the trajectory rule -------------------------------------------------------------------------

ALPHA = math.sqrt(1 / 5)


def spherical(scale=ALPHA):
    def model():
        numpyro.sample("x", dist.Normal(0, scale).expand([40]).to_event(1))

    return model


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize(
    "inverse_mass_matrix",
    ["prior", "identity", np.full(40, 3.0, np.float32), 0.7 * np.eye(40, dtype=np.float32)],
    ids=["prior", "identity", "vector", "matrix"],
)
def test_a_quarter_turn_of_the_prior_forgets_where_it_began(inverse_mass_matrix, temperature):
    kernel = ppl_bnn.HMC(
        spherical(),
        inverse_mass_matrix=inverse_mass_matrix,
        temperature=temperature,
        step_size=0.01,
        adapt_step_size=False,
        trajectory_jitter=0.0,
        warm_start=0,
    )
    mcmc = run(kernel, num_samples=400, num_warmup=5, num_chains=2)
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["x"], float)
    pairs = draws[:, :-1].size
    for values in (draws, draws**2):
        centred = values - values.mean()
        lag_1 = (centred[:, 1:] * centred[:, :-1]).mean() / centred.var()
        assert abs(lag_1) < 4 / math.sqrt(pairs)
    assert draws.var() == pytest.approx(temperature / 5, rel=5 * math.sqrt(2 / draws.size))


def test_half_a_quarter_turn_does_not():
    kernel = ppl_bnn.HMC(
        spherical(),
        trajectory_length=math.pi / 4,
        step_size=0.01,
        adapt_step_size=False,
        trajectory_jitter=0.0,
        warm_start=0,
    )
    mcmc = run(kernel, num_samples=400, num_warmup=5, num_chains=2)
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["x"], float)
    lag_1 = (draws[:, 1:] * draws[:, :-1]).mean() / draws.var()
    assert lag_1 == pytest.approx(math.cos(math.pi / 4), abs=0.05)


def test_rule_takes_the_widest_prior():
    def model():
        numpyro.sample("narrow", dist.Normal(0, 0.1))
        numpyro.sample("wide", dist.Normal(0, 2.0).expand([3]).to_event(1))

    def length(**options):
        kernel = ppl_bnn.HMC(model, step_size=0.1, warm_start=0, **options)
        return float(kernel.init(jax.random.key(0), 1, None, (), {}).trajectory_length)

    assert length() == pytest.approx(math.pi / 2)
    assert length(inverse_mass_matrix="identity") == pytest.approx(math.pi)
    # M = 1 / 4: masses shrink the prior's frequency as they shrink its scale
    assert length(inverse_mass_matrix=np.full(4, 4.0)) == pytest.approx(math.pi / 2)
    blocks = {("narrow",): np.array([[1e-4]]), ("wide",): np.eye(3)}
    assert length(inverse_mass_matrix=blocks) == pytest.approx(math.pi / 2 * 10)


def test_the_papers_numbers():
    """Izmailov et al. 2021: prior variance 1/5, step 1e-5, 70,248 leapfrog steps."""
    kernel = ppl_bnn.HMC(
        spherical(),
        inverse_mass_matrix="identity",
        step_size=1e-5,
        adapt_step_size=False,
        trajectory_jitter=0.0,
        warm_start=0,
    )
    state = kernel.init(jax.random.key(0), 0, None, (), {})
    assert float(state.trajectory_length) == pytest.approx(0.702, abs=5e-4)
    assert int(kernel.sample(state, (), {}).num_steps) == 70_248
    assert ppl_bnn.trajectory_length(ALPHA) == pytest.approx(0.702, abs=5e-4)
    assert ppl_bnn.num_leapfrog_steps(ppl_bnn.trajectory_length(ALPHA), 1e-5) == 70_248


def test_without_jitter_the_steps_make_up_the_length_exactly():
    kernel = ppl_bnn.HMC(
        spherical(), step_size=0.4, adapt_step_size=False, trajectory_jitter=0.0, warm_start=0
    )
    state = kernel.sample(kernel.init(jax.random.key(0), 0, None, (), {}), (), {})
    assert int(state.num_steps) == 4
    assert float(state.step_size) == pytest.approx(math.pi / 8)


def test_jitter_spreads_lengths_and_is_shared_by_the_chains():
    kernel = ppl_bnn.HMC(spherical(), step_size=0.01, adapt_step_size=False, warm_start=0)
    mcmc = run(kernel, num_samples=200, num_warmup=0)
    steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    assert (steps == steps[0]).all()
    lengths = steps[0] * 0.01 / (math.pi / 2)
    assert lengths.min() >= 0.69 and lengths.max() <= 1.31
    assert lengths.std() == pytest.approx(0.6 / math.sqrt(12), rel=0.2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(3), r"has shape \(3,\); those sites have 4 elements"),
        ({"a": np.ones(2)}, r"keys must be tuples of site names, for example \('a',\)"),
        ({("c",): np.ones(2)}, r"names \['c'\], which is no latent site"),
        ({("a",): np.ones(2), ("a", "b"): np.ones(4)}, r"names \['a'\], which is named twice"),
        (-np.ones(4), "must be positive"),
        (-np.eye(4), "not positive definite"),
    ],
)
def test_bad_inverse_mass_matrix(value, message):
    with pytest.raises(ValueError, match=message):
        parse_inverse_mass_matrix(value, POSITION)
