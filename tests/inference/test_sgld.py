"""SGLD's core: stationary moments with minibatch noise, preconditioners, a multimodal density."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

from ppl_bnn import schedules
from ppl_bnn.inference import sgld
from ppl_bnn.inference.preconditioner import adam, diagonal, identity, rmsprop

H = 0.01  # with 20 rows h lambda = 0.2, and batches of 2 bring as much noise as T = 1


def start(spread, num_chains, seed=1, preconditioner_state=()):
    """Chains that begin with covariance `spread`, shape (d, d)."""
    root = np.linalg.cholesky(spread)
    draws = np.random.default_rng(seed).normal(size=(num_chains, len(root))) @ root.T
    learnt = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (num_chains, *leaf.shape)), preconditioner_state
    )
    return sgld.State({"a": jnp.asarray(draws)}, learnt)


def squares(states, info):
    return states.position["a"] ** 2


def products(states, info):
    return states.position["a"][:, :, None] * states.position["a"][:, None, :]


# closed forms --------------------------------------------------------------------------------


TEMPERATURES = np.array([0.1, 1.0, 4.0])


@pytest.mark.parametrize("exact", [False, True], ids=["minibatch", "exact"])
def test_variance(location, simulate, assert_mean, exact):
    with jax.enable_x64(True):
        target = location()
        lam, v = target.hessian[0, 0], 0.0 if exact else target.noise[0, 0]
        expected = (2 * TEMPERATURES + H * v) / (lam * (2 - H * lam))
        if exact:
            np.testing.assert_allclose(expected, TEMPERATURES * expected[1])
        else:
            assert H * v == pytest.approx(2 * TEMPERATURES[1])

        def run(temperature, variance):
            states = start(np.ones((1, 1)), 1000)
            states.position["a"] *= jnp.sqrt(variance)
            step = partial(sgld.step, step_size=H, temperature=temperature)
            gradient = target.exact if exact else target.gradient
            return simulate(step, states, gradient, 500, squares)

        values = jax.vmap(run, out_axes=-1)(TEMPERATURES, expected)
        assert_mean(values[..., 0, :], expected)


def test_info(location, simulate, assert_mean):
    with jax.enable_x64(True):
        target = location(d=2)
        lam, v = target.hessian[0, 0], target.noise[0, 0]
        variance = (2 + H * v) / (lam * (2 - H * lam))

        def record(states, info):
            return info.potential, info.gradient_norm**2, info.virial

        potential, norm, virial = simulate(
            partial(sgld.step, step_size=H),
            start(variance * np.eye(2), 1000),
            target.gradient,
            500,
            record,
        )
        assert_mean(potential, lam / 2 * 2 * (variance + 1))
        assert_mean(norm, 2 * (lam**2 * variance + v))
        assert_mean(virial, lam * variance)


def test_subtracted_gradient_noise(location, simulate, assert_mean):
    with jax.enable_x64(True):
        target = location()
        h, lam, v = 0.005, target.hessian[0, 0], target.noise[0, 0]
        expected = 2 / (lam * (2 - h * lam))

        def record(states, info):
            return squares(states, info), info.is_clipped

        for estimate in (v, {"a": jnp.array([v])}):
            step = partial(sgld.step, step_size=h, noise_estimate=estimate)
            values, is_clipped = simulate(
                step, start(np.array([[expected]]), 1000), target.gradient, 1000, record
            )
            assert_mean(values[..., 0], expected)
            assert not np.any(is_clipped)


def test_more_gradient_noise_than_may_be_injected(location, simulate, assert_mean):
    with jax.enable_x64(True):
        target = location()
        h, lam, v = 0.02, target.hessian[0, 0], target.noise[0, 0]
        assert 2 * h < h**2 * v
        expected = h * v / (lam * (2 - h * lam))

        def record(states, info):
            return squares(states, info), info.is_clipped

        step = partial(sgld.step, step_size=h, noise_estimate=v)
        values, is_clipped = simulate(
            step, start(np.array([[expected]]), 1000), target.gradient, 500, record
        )
        assert_mean(values[..., 0], expected)
        assert np.all(is_clipped)


PRECISION = np.array([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.5]])


def learnt(preconditioner, target):
    """State of a preconditioner after 200 gradients at the posterior."""
    position = {"a": jnp.zeros(target.x.shape[1])}

    def update(state, rng_key):
        return preconditioner.update(state, target.gradient(rng_key, position)[1], True), None

    keys = jax.random.split(jax.random.key(3), 200)
    return jax.lax.scan(update, preconditioner.init(position), keys)[0]


PRECONDITIONERS = {
    "identity": identity(),
    "diagonal": diagonal({"a": np.array([0.5, 1.0, 2.0])}),
    "rmsprop": rmsprop(gradient_scale=1 / 20),
}


@pytest.mark.parametrize("estimate", [False, True], ids=["plain", "subtracted"])
@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_covariance_with_a_frozen_preconditioner(location, simulate, assert_mean, name, estimate):
    with jax.enable_x64(True):
        target, preconditioner = location(d=3, precision=PRECISION), PRECONDITIONERS[name]
        h, temperature = 0.0025, 2.0
        state = learnt(preconditioner, target)
        g = np.diag(preconditioner.scale(state, {"a": jnp.zeros(3)})["a"])
        injected = 2 * h * temperature * g
        if estimate:
            injected = injected - h**2 * g @ np.diag(np.diag(target.noise)) @ g
            assert np.all(np.diag(injected) > 0)
        expected = solve_discrete_lyapunov(
            np.eye(3) - h * g @ target.hessian, injected + h**2 * g @ target.noise @ g
        )
        step = partial(
            sgld.step,
            step_size=h,
            temperature=temperature,
            preconditioner=preconditioner,
            adapt=jnp.array(False),
            noise_estimate=jnp.diag(target.noise) if estimate else None,
        )
        values = simulate(
            step, start(expected, 1000, preconditioner_state=state), target.gradient, 1000, products
        )
        spread = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        # covariances may be small: 1 + correlation is compared, and has an error of its own size
        assert_mean(values / spread + 1, expected / spread + 1)


def test_covariance_with_adams_drift(location, simulate, assert_mean):
    with jax.enable_x64(True):
        target, preconditioner = location(), adam(mean_decay=0.8, gradient_scale=1 / 10)
        h, b, lam, v = 0.01, 0.8, target.hessian[0, 0], target.noise[0, 0]
        state = learnt(preconditioner, target)
        g = float(preconditioner.scale(state, {"a": jnp.zeros(1)})["a"][0])
        # of (theta, m): m <- b m + (1 - b) (lam theta + n); theta <- theta - h g m + noise
        mean = np.array([[1, 0], [(1 - b) * lam, b]])
        move = np.array([[1, -h * g], [0, 1]])
        kick = move @ np.array([[0], [1 - b]])
        noise = v * kick @ kick.T + np.diag([2 * h * g, 0])
        expected = solve_discrete_lyapunov(move @ mean, noise)[0, 0]
        plain = (2 + h * g * v) / (lam * (2 - h * g * lam))
        assert abs(expected / plain - 1) > 0.05
        step = partial(sgld.step, step_size=h, preconditioner=preconditioner, adapt=False)
        values = simulate(
            step,
            start(np.array([[expected]]), 1000, preconditioner_state=state),
            target.gradient,
            1500,
            squares,
        )
        assert_mean(values[500:, :, 0], expected)


# adapting preconditioners --------------------------------------------------------------------


def quartic(rng_key, position):
    """U = theta^4 / 4, one coordinate, exactly."""
    return position["a"][0] ** 4 / 4, {"a": position["a"] ** 3}


def chain_moments(h, drift, scale):
    """E theta^2 under theta' ~ N(theta - h drift, 2 h scale), from the transition matrix."""
    grid = np.linspace(-4, 4, 801)
    centre, sd = grid - h * drift(grid), np.sqrt(2 * h * scale(grid))
    matrix = np.exp(-0.5 * ((grid - centre[:, None]) / sd[:, None]) ** 2)
    matrix /= matrix.sum(1, keepdims=True)
    density = np.full(grid.size, 1 / grid.size)
    for _ in range(12):  # 2^12 steps
        matrix = matrix @ matrix
        matrix /= matrix.sum(1, keepdims=True)
    return float((density @ matrix) @ grid**2)


@pytest.mark.parametrize("curvature_correction", [False, True])
def test_rmsprop_that_forgets_at_once(simulate, assert_mean, curvature_correction):
    """With decay 0, G = 1 / (1 + |U'(theta)|), and the chain is one of theta alone."""
    with jax.enable_x64(True):
        h, preconditioner = 0.02, rmsprop(decay=0.0, eps=1.0)

        def scale(theta):
            return 1 / (1 + np.abs(theta**3))

        def gamma(theta):
            return -3 * theta**2 * np.sign(theta) * scale(theta) ** 2

        def drift(theta):
            return scale(theta) * theta**3 - gamma(theta) * curvature_correction

        expected = chain_moments(h, drift, scale)
        # for h = 0: without the correction the density is exp(-U) / G
        theta = np.linspace(-6, 6, 10_001)
        weights = np.exp(-(theta**4) / 4) / (1 if curvature_correction else scale(theta))
        limit = np.sum(weights * theta**2) / np.sum(weights)
        # halves of the integrals of |theta|^k exp(-U), k = 0, 2, 3, 5
        i0, i2, i3, i5 = (4 ** ((k - 3) / 4) * math.gamma((k + 1) / 4) for k in (0, 2, 3, 5))
        closed = i2 / i0 if curvature_correction else (i2 + i5) / (i0 + i3)
        assert limit == pytest.approx(closed)
        assert expected == pytest.approx(limit, rel=0.03)

        step = partial(
            sgld.step,
            step_size=h,
            preconditioner=preconditioner,
            curvature_correction=curvature_correction,
        )
        position = {"a": jnp.asarray(np.random.default_rng(0).normal(size=(2000, 1)))}
        states = jax.vmap(lambda q: sgld.init(q, preconditioner))(position)
        values = simulate(step, states, quartic, 2500, squares)
        assert_mean(values[500:, :, 0], expected)


def test_rmsprop_that_remembers(location, simulate):
    """Against a plain NumPy simulation of the paper's algorithm 1."""
    with jax.enable_x64(True):
        target = location()
        num_rows, num_chains, h, decay, eps = 20, 2000, 1e-3, 0.9, 1e-2
        preconditioner = rmsprop(decay=decay, eps=eps, gradient_scale=1 / num_rows)
        states = jax.vmap(lambda q: sgld.init(q, preconditioner))({"a": jnp.zeros((num_chains, 1))})
        step = partial(sgld.step, step_size=h, preconditioner=preconditioner)
        ours = simulate(step, states, target.gradient, 1500, squares)[300:, :, 0].mean(0)

        rng = np.random.default_rng(0)
        theta, v, kept = np.zeros(num_chains), np.zeros(num_chains), []
        for _ in range(1500):
            batch = target.x[rng.integers(num_rows, size=(num_chains, 2)), 0]
            mean_gradient = theta - batch.mean(1)
            v = decay * v + (1 - decay) * mean_gradient**2
            g = 1 / (eps + np.sqrt(v))
            theta = theta - h * g * num_rows * mean_gradient
            theta = theta + np.sqrt(2 * h * g) * rng.normal(size=num_chains)
            kept.append(theta**2)
        theirs = np.mean(kept[300:], axis=0)
        error = np.sqrt((ours.var() + theirs.var()) / num_chains)
        assert error < 0.01 * theirs.mean()
        assert abs(ours.mean() - theirs.mean()) < 4 * error


def test_adam_starts_without_bias():
    gradient = {"a": jnp.array([3.0, -0.5])}
    preconditioner = adam(eps=1e-3)
    state = preconditioner.update(preconditioner.init(gradient), gradient, True)
    np.testing.assert_allclose(preconditioner.drift(state, gradient)["a"], gradient["a"], rtol=1e-6)
    np.testing.assert_allclose(
        preconditioner.scale(state, gradient)["a"], 1 / (1e-3 + np.abs(gradient["a"])), rtol=1e-5
    )


def test_a_parameter_without_gradient_moves_and_stays_finite():
    position = {"a": jnp.ones(2)}

    def flat(position):
        return jnp.zeros(()), {"a": 0.0 * position["a"]}

    preconditioner = rmsprop(eps=0.1)
    state, _ = sgld.step(
        jax.random.key(0),
        sgld.init(position, preconditioner),
        flat,
        step_size=0.1,
        preconditioner=preconditioner,
        curvature_correction=True,
    )
    assert np.isfinite(state.position["a"]).all()
    assert not np.any(state.position["a"] == position["a"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(rmsprop, decay=1.0), r"`decay` must be in \[0, 1\), got 1.0"),
        (partial(rmsprop, eps=0.0), "`eps` must be positive and finite, got 0.0"),
        (partial(adam, mean_decay=-0.1), r"`mean_decay` must be in \[0, 1\)"),
        (partial(adam, gradient_scale=np.inf), "`gradient_scale` must be positive and finite"),
        (lambda: diagonal({"b": 1.0}).init({"a": jnp.ones(2)}), r"the position has \['a'\]"),
        (lambda: diagonal({"a": -1.0}).init({"a": jnp.ones(2)}), "must be positive and finite"),
        (lambda: diagonal({"a": np.ones(3)}).init({"a": jnp.ones(2)}), r"shape \(3,\)"),
    ],
)
def test_bad_preconditioner(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# keys and dtypes -----------------------------------------------------------------------------

POSITION = {"a": jnp.array([0.3, -0.8]), "b": jnp.ones((2, 2), jnp.bfloat16)}


def bowl(position):
    return jnp.ones(()), position


@pytest.mark.parametrize("preconditioner", [identity(), rmsprop(), adam()])
def test_core_needs_no_dtype_promotion_and_reuses_no_key(preconditioner):
    with jax.numpy_dtype_promotion("strict"), jax.debug_key_reuse(True):
        state = sgld.init(POSITION, preconditioner)
        for adapt, correct in ((True, True), (jnp.array(False), False)):
            new, _ = sgld.step(
                jax.random.key(0),
                state,
                bowl,
                step_size=jnp.float32(0.1),
                temperature=0.5,
                preconditioner=preconditioner,
                adapt=adapt,
                curvature_correction=correct,
                noise_estimate=0.1,
            )
            kind = partial(jax.tree.map, lambda leaf: (leaf.shape, leaf.dtype))
            assert kind(new) == kind(state)


def test_noise_differs_between_keys_sites_and_elements():
    zeros = {"a": jnp.zeros(4), "b": jnp.zeros(4)}
    draws = [
        sgld.step(jax.random.key(seed), sgld.init(zeros), bowl, step_size=0.1)[0].position
        for seed in (0, 1)
    ]
    values = np.concatenate([leaf for draw in draws for leaf in draw.values()])
    assert len(np.unique(values)) == 16


def test_temperature_zero_is_gradient_descent():
    position = {"a": jnp.array([0.3, -0.8])}
    new, _ = sgld.step(jax.random.key(0), sgld.init(position), bowl, step_size=0.1, temperature=0.0)
    np.testing.assert_allclose(new.position["a"], 0.9 * position["a"], rtol=1e-6)


# 25 modes ------------------------------------------------------------------------------------

CENTRES = np.stack(np.meshgrid(*2 * [np.arange(-4.0, 5.0, 2.0)]), -1).reshape(25, 2)


def mixture(rng_key, position):
    """Equal Gaussians of variance 0.03 on a grid; gradient noise N(0, 1) (Zhang et al. 2020)."""

    def potential(position):
        away = position["a"] - jnp.asarray(CENTRES, position["a"].dtype)
        return -jax.scipy.special.logsumexp(-jnp.sum(away**2, axis=-1) / 0.06)

    value, gradient = jax.value_and_grad(potential)(position)
    return value, jax.tree.map(lambda g: g + jax.random.normal(rng_key, g.shape, g.dtype), gradient)


def occupied(schedule, temperature, is_kept):
    """Share of kept draws by nearest mode, 5 seeds of 16 chains, 50,000 steps: shape (5, 25).

    All chains start in the mode at the centre.
    """
    num_steps, num_chains = 50_000, 16

    def body(states, inputs):
        t, rng_key = inputs

        def one(rng_key, state):
            key_batch, key_step = jax.random.split(rng_key)
            return sgld.step(
                key_step,
                state,
                partial(mixture, key_batch),
                step_size=schedule(t),
                temperature=temperature(t),
            )[0]

        states = jax.vmap(one)(jax.random.split(rng_key, num_chains), states)
        away = states.position["a"][:, None] - jnp.asarray(CENTRES, jnp.float32)
        nearest = jnp.argmin(jnp.sum(away**2, axis=-1), axis=-1)
        return states, jnp.zeros(25).at[nearest].add(jnp.where(is_kept(t), 1.0, 0.0))

    @jax.jit
    @jax.vmap
    def run(rng_key):
        key_start, key_steps = jax.random.split(rng_key)
        start = {"a": 0.17 * jax.random.normal(key_start, (num_chains, 2))}
        inputs = (jnp.arange(num_steps), jax.random.split(key_steps, num_steps))
        return jax.lax.scan(body, jax.vmap(sgld.init)(start), inputs)[1].sum(0)

    counts = np.asarray(run(jax.random.split(jax.random.key(0), 5)), float)
    return counts / counts.sum(1, keepdims=True)


@pytest.mark.slow
def test_cycles_find_all_modes():
    """Plain SGLD takes the step at which its draws are as wide around a mode as the cycles'."""
    cycles = schedules.cyclical(0.07, 1000, exploration=0.25, kept=0.5)
    shares = occupied(cycles, lambda t: jnp.where(cycles.is_sampling(t), 1.0, 0.0), cycles.is_kept)
    distance = np.abs(shares - 1 / 25).sum(1) / 2
    assert np.all((shares > 0).sum(1) >= 20)
    assert np.all(distance <= 0.15), distance
    plain = occupied(schedules.constant(0.02), lambda t: 1.0, lambda t: True)
    assert np.all((plain > 0).sum(1) < 10)
