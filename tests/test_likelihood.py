import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import HMC, MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density

import ppl_bnn
from ppl_bnn.likelihood import full_batch, mini_batch


def bnn(x, y=None):
    """One hidden layer, a hierarchical prior, a noise scale."""
    width = numpyro.sample("width", dist.HalfNormal(1.0))
    first = numpyro.sample("first", dist.Normal(0, width).expand([x.shape[1], 5]).to_event(2))
    second = numpyro.sample("second", dist.Normal(0, 1).expand([5]).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(-1, 0.5))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ first) @ second, noise), obs=y)


def data(num_rows, dtype=np.float32, features=3):
    rng = np.random.default_rng(num_rows)
    x = rng.normal(size=(num_rows, features)).astype(dtype)
    return x, (np.sin(x[:, 0]) + 0.3 * rng.normal(size=num_rows)).astype(dtype)


def values(dtype=np.float32, features=3):
    rng = np.random.default_rng(1)
    return {
        "width": jnp.asarray(0.7, dtype),
        "first": jnp.asarray(rng.normal(size=(features, 5)), dtype),
        "second": jnp.asarray(rng.normal(size=5), dtype),
        "noise": jnp.asarray(0.4, dtype),
    }


def value_and_grad(model, args, at):
    return jax.jit(jax.value_and_grad(lambda v: log_density(model, args, {}, v)[0]))(at)


@pytest.mark.parametrize(
    ("devices", "chunk_size", "num_rows"),
    [
        (None, 7, 101),
        (None, 1000, 101),
        (1, 16, 64),
        (2, None, 101),
        (4, 7, 101),
        (8, 8, 64),
        (8, 5, 101),
    ],
)
def test_equals_the_plain_log_density_in_float64(devices, chunk_size, num_rows):
    with jax.enable_x64(True):
        args, at = data(num_rows, np.float64), values(np.float64)
        mesh = None if devices is None else ppl_bnn.mesh(data=devices)
        expected = value_and_grad(bnn, args, at)
        got = value_and_grad(full_batch(bnn, mesh=mesh, chunk_size=chunk_size), args, at)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("devices", [None, 1, 4, 8])
def test_equals_the_plain_log_density_in_float32(devices):
    args, at = data(1001), values()
    mesh = None if devices is None else ppl_bnn.mesh(data=devices)
    expected = value_and_grad(bnn, args, at)
    got = value_and_grad(full_batch(bnn, mesh=mesh, chunk_size=50), args, at)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()), rtol=0)


@pytest.mark.parametrize("num_chains", [None, 3])
@pytest.mark.parametrize("chunk_size", [None, 10])
def test_one_all_reduce_a_gradient(num_chains, chunk_size):
    args, at = data(101), values()
    model = full_batch(bnn, mesh=ppl_bnn.mesh(data=4), chunk_size=chunk_size)
    gradient = jax.value_and_grad(lambda v, args: log_density(model, args, {}, v)[0])
    if num_chains:
        gradient = jax.vmap(gradient, in_axes=(0, None))
        at = jax.tree.map(lambda x: jnp.stack([x] * num_chains), at)
    text = jax.jit(gradient).lower(at, args).compile().as_text()
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1
    assert not re.findall(r" (?:all-gather|all-to-all|reduce-scatter)(?:-start)?\(", text)


@pytest.mark.parametrize("odd", [0, 7])
def test_memory_is_bounded_by_the_chunk(odd):
    def temporary(num_rows):
        args = data(num_rows + odd)
        model = full_batch(bnn, chunk_size=1000)
        gradient = jax.value_and_grad(lambda v, args: log_density(model, args, {}, v)[0])
        compiled = jax.jit(gradient).lower(values(), args).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(100_000) <= 1.2 * temporary(10_000)


def test_scale_and_mask_are_honoured_inside_and_outside():
    x, y = data(30)
    keep = np.arange(30) % 3 > 0

    def masked(x, keep, y=None):
        with handlers.mask(mask=keep):
            bnn(x, y)

    # a mask inside the model is a prior's as well as a likelihood's, hence only the likelihood
    def likelihood_masked(x, keep, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", x.shape[0]), handlers.mask(mask=keep), handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    at = {"w": jnp.array([0.5, -1.0, 2.0])}
    for transform in (lambda m: m, lambda m: handlers.scale(m, 0.25)):
        expected = log_density(transform(likelihood_masked), (x, keep, y), {}, at)[0]
        model = transform(full_batch(likelihood_masked, chunk_size=8))
        np.testing.assert_allclose(log_density(model, (x, keep, y), {}, at)[0], expected, rtol=1e-5)


def test_scales_of_rows_go_along_the_rows_of_several_outputs():
    x, _ = data(4)
    y = np.stack([x[:, 0], x[:, 1], x[:, 2], x[:, 0]], axis=1)  # as many outputs as rows

    def model(x, weight, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3, 4]).to_event(2))
        with numpyro.plate("data", x.shape[0]), handlers.scale(scale=weight):
            numpyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)

    weight = np.array([0.1, 3.0, 1.0, 0.5], np.float32)
    at = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)}
    expected = log_density(model, (x, weight, y), {}, at)[0]
    chunked = log_density(full_batch(model, chunk_size=3), (x, weight, y), {}, at)[0]
    np.testing.assert_allclose(chunked, expected, rtol=1e-5)
    for chunk_size in (None, 3):
        kernel = ppl_bnn.HMC(model, chunk_size=chunk_size, init_strategy=at, warm_start=0)
        state = kernel.init(jax.random.key(0), 1, None, (x, weight, y), {})
        np.testing.assert_allclose(state.potential_energy, -expected, rtol=1e-5)


def test_sites_fixed_outside_the_transform_reach_the_model():
    x, y = data(30)
    at = values()
    noise = {"noise": at.pop("noise")}
    fixed = handlers.condition(full_batch(bnn, chunk_size=7), noise)
    expected = log_density(handlers.condition(bnn, noise), (x, y), {}, at)[0]
    np.testing.assert_allclose(log_density(fixed, (x, y), {}, at)[0], expected, rtol=1e-5)


def test_padding_rows_that_would_be_infinite_count_for_nothing():
    x, y = data(5)
    x[0] = 0  # the row that padding repeats: its likelihood has no gradient at the origin

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    at = {"w": jnp.zeros(3)}
    expected = value_and_grad(model, (x, y), at)
    got = value_and_grad(full_batch(model, mesh=ppl_bnn.mesh(data=4)), (x, y), at)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)


def test_without_observed_values_it_is_the_model_itself():
    x, _ = data(9)
    model = full_batch(bnn, chunk_size=4)
    trace = handlers.trace(handlers.seed(model, 0)).get_trace(x)
    assert trace["y"]["value"].shape == (9,)
    assert "log_likelihood" not in trace


def test_deterministic_sites_of_two_rows_are_not_recorded():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.deterministic("twice", 2 * w)
        f = numpyro.deterministic("f", x @ w)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(f, 1.0), obs=y)

    x, y = data(9, features=2)
    trace = handlers.trace(handlers.seed(full_batch(model), 0)).get_trace(x, y)
    assert trace["twice"]["value"].shape == (2,)
    assert "f" not in trace


@pytest.mark.parametrize("kernel", [NUTS, HMC])
def test_runs_under_numpyros_samplers(kernel):
    x, y = data(60)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    transformed = full_batch(model, mesh=ppl_bnn.mesh(data=4), chunk_size=6)
    options = {} if kernel is NUTS else {"trajectory_length": 1.0}
    mcmc = MCMC(
        kernel(transformed, **options),
        num_warmup=300,
        num_samples=500,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
        jit_model_args=True,
    )
    mcmc.run(jax.random.key(0), x, y)
    precision = np.eye(3) + x.T @ x / 0.25
    mean = np.linalg.solve(precision, x.T @ y / 0.25)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    w = np.asarray(mcmc.get_samples()["w"])
    # 1000 draws with an effective sample size of 100 at least
    np.testing.assert_array_less(np.abs(w.mean(0) - mean) / sd, 4 / np.sqrt(100))
    predicted = Predictive(transformed, mcmc.get_samples())(jax.random.key(1), x[:4])
    assert predicted["y"].shape == (1000, 4)


@pytest.mark.parametrize("transform", [full_batch, lambda m: mini_batch(m, batch_size=20)])
def test_runs_under_svi(transform):
    x, y = data(100)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    model_ = transform(model)
    guide = AutoNormal(model_)
    svi = SVI(model_, guide, numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=10))
    result = svi.run(jax.random.key(0), 2000, x, y, progress_bar=False)
    precision = np.eye(3) + x.T @ x / 0.25
    mean = np.linalg.solve(precision, x.T @ y / 0.25)
    np.testing.assert_allclose(result.params["w_auto_loc"], mean, atol=0.05)
    # a likelihood without the factor N / B would give scales 2.2 times as wide
    np.testing.assert_allclose(
        result.params["w_auto_scale"], 1 / np.sqrt(np.diag(precision)), rtol=0.25
    )


def test_mini_batch_is_unbiased():
    x, y = data(12)
    at = values()

    def likelihood(model, seed):
        seeded = handlers.seed(handlers.substitute(model, data=at), seed)
        site = handlers.trace(seeded).get_trace(x, y)["y"]
        return jnp.sum(site["fn"].log_prob(site["value"])) * (site["scale"] or 1.0)

    exact = likelihood(bnn, 0)
    estimate = jax.vmap(lambda key: likelihood(mini_batch(bnn, batch_size=4), key))(
        jax.random.split(jax.random.key(0), 2000)
    )
    error = jnp.abs(estimate.mean() - exact)
    assert error < 4 * estimate.std() / np.sqrt(2000)
    assert estimate.std() > 0


@pytest.mark.parametrize("kernel", [NUTS, HMC, ppl_bnn.HMC])
def test_mini_batch_is_refused_where_it_would_freeze(kernel):
    mcmc = MCMC(
        kernel(mini_batch(bnn, batch_size=5)), num_warmup=2, num_samples=2, progress_bar=False
    )
    with pytest.raises(ValueError, match="subsample"):
        mcmc.run(jax.random.key(0), *data(20))


def test_mini_batch_larger_than_the_data():
    with pytest.raises(ValueError, match="`batch_size` is 50, but the model was given 20 rows"):
        handlers.seed(mini_batch(bnn, batch_size=50), 0)(*data(20))


# models that are no sum over rows ------------------------------------------------------------


def standardises(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal((x - x.mean(0)) @ w, 1.0), obs=y)


def prior_from_data(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, x.std()).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def sums_itself(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.factor("total", dist.Normal(x @ w, 1.0).log_prob(y).sum())
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def local_latent(x, y=None):
    with numpyro.plate("data", x.shape[0]):
        shift = numpyro.sample("shift", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(x[:, 0] + shift, 1.0), obs=y)


def two_plates(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y)
    with numpyro.plate("features", x.shape[1]):
        numpyro.sample("z", dist.Normal(w, 1.0), obs=x[0])


def two_plates_of_arguments(x, y=None, z=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y)
    with numpyro.plate("others", z.shape[0]):
        numpyro.sample("z", dist.Normal(w, 1.0), obs=z)


def subsamples(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0], subsample_size=4) as index:
        numpyro.sample("y", dist.Normal(x[index] @ w, 1.0), obs=y[index])


def closes_over(x, y=None):
    offset = jnp.arange(20.0)
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w + offset, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (standardises, "not a sum over rows.*x.mean"),
        (prior_from_data, "prior of 'w' depends on which rows"),
        (sums_itself, "'total' has no axis of rows but changes"),
        (local_latent, "latent site 'shift' has one value for each of the 20 rows"),
        (subsamples, "plate 'data' subsamples 4 of 20"),
        (closes_over, "not on two of them"),
    ],
)
def test_refuses_models_that_are_no_sum_over_rows(model, message):
    with pytest.raises(ValueError, match=message):
        log_density(full_batch(model), data(20), {}, {"w": jnp.ones(3), "shift": jnp.zeros(20)})
    mcmc = MCMC(ppl_bnn.HMC(model, chunk_size=5), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match=message):
        mcmc.run(jax.random.key(0), *data(20))


def test_row_coupling_is_noticed_under_a_callers_jit():
    x, y = data(20)
    model = full_batch(standardises, chunk_size=7)
    at = {"w": jnp.ones(3)}
    with pytest.raises(ValueError, match="not a sum over rows"):
        jax.jit(lambda x, y: log_density(model, (x, y), {}, at)[0])(x, y)


def test_refuses_two_plates_of_different_size():
    x, y = data(20)
    model = full_batch(two_plates_of_arguments)
    with pytest.raises(ValueError, match="plates of different sizes"):
        log_density(model, (x, y, y[:7]), {}, {"w": jnp.ones(())})


def test_names_rows_by_hand():
    x, y = data(3)  # as many rows as features: `prior_mean` would pass for data

    def model(x, prior_mean, y=None):
        w = numpyro.sample("w", dist.Normal(prior_mean, 1).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    args, at = (x, np.ones(3, np.float32), y), {"w": jnp.ones(3)}
    expected = log_density(model, args, {}, at)[0]
    got = log_density(full_batch(model, chunk_size=2, data_argnames=["x", "y"]), args, {}, at)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"`data_argnames` has \['z'\]"):
        log_density(full_batch(model, data_argnames=["z"]), args, {}, at)


def test_data_in_a_closure_is_refused():
    x, y = data(20)

    def model():
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", 20):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match="no argument of the model holds the rows"):
        log_density(full_batch(model), (), {}, {"w": jnp.ones(3)})


def test_features_in_a_closure_are_refused():
    x, y = data(20)

    def model(y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"not on two of them.*not from a closure"):
        log_density(full_batch(model), (y,), {}, {"w": jnp.ones(3)})


@pytest.mark.parametrize("chunk_size", [0, -3, 2.5])
def test_bad_chunk_size(chunk_size, as_users_run):
    with pytest.raises(ValueError, match="`chunk_size` must be a positive number of rows"):
        full_batch(bnn, chunk_size=chunk_size)


def test_mesh_larger_than_the_data():
    model = full_batch(bnn, mesh=ppl_bnn.mesh(data=8))
    with pytest.raises(ValueError, match="over 8 devices, but there are 5 rows"):
        log_density(model, data(5), {}, values())


def test_more_devices_than_there_are():
    with pytest.raises(ValueError, match="needs 1000 devices"):
        ppl_bnn.mesh(data=1000)
