"""Rank-1 guides and their objectives: closed forms, bounds, minibatches, and NumPyro's SVI."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.infer import SVI
from scipy.special import erf
from scipy.stats import cauchy, kstest, norm

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.inference.rank1_draws import flipped
from ppl_bnn.inference.rank1_guide import FAMILIES

N, K, NOISE, PRIOR = 40, 3, 0.5, 0.4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = (X @ np.array([1.3, 0.8]) + NOISE * RNG.normal(size=N)).astype(np.float32)
KEY = jax.random.key(0)


def model(x, y=None, prior=None):
    """A linear regression whose coefficients are factors; the bias is a point."""
    prior = dist.Normal(1.0, PRIOR) if prior is None else prior
    r = numpyro.sample("net.r", prior.expand([2]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal((x * r).sum(-1) + bias, NOISE), obs=y)


PARAMS = {
    "net.r_auto_loc": jnp.asarray(RNG.normal(1, 0.3, size=(K, 2)), jnp.float32),
    "net.r_auto_scale": jnp.asarray(RNG.uniform(0.05, 0.3, size=(K, 2)), jnp.float32),
    "bias_auto_point": jnp.float32(0.2),
}


def loss(guide=None, seed=0, params=PARAMS, model=model, data=(X, Y), **options):
    guide = ppl_bnn.AutoRank1(model, num_components=K) if guide is None else guide
    objective = ppl_bnn.Rank1ELBO(**options)
    return objective.loss(jax.random.key(seed), params, model, guide, *data)


def normal_log(value, variance):
    return -0.5 * (value**2 / variance + np.log(2 * np.pi * variance))


def bound_by_hand():
    """Expected log likelihood, mean divergence and log prior of the bias."""
    m, v = (np.asarray(PARAMS[f"net.r_auto_{name}"], float) for name in ("loc", "scale"))
    residual = Y[:, None] - X @ m.T - 0.2
    likelihood = normal_log(residual, NOISE**2).sum(0) - 0.5 * (X**2 @ v.T**2).sum(0) / NOISE**2
    divergence = np.log(PRIOR / v) + (v**2 + (m - 1) ** 2) / (2 * PRIOR**2) - 0.5
    return likelihood.mean(), divergence.sum(1).mean(), normal_log(0.2, 1.0)


@pytest.mark.parametrize("per_example", [True, False])
def test_the_bound_of_a_linear_regression(per_example):
    likelihood, divergence, prior = bound_by_hand()
    keys = jax.random.split(KEY, 2000)
    guide, objective = ppl_bnn.AutoRank1(model, num_components=K), None
    for options, weight in (
        ({}, 1.0),
        ({"divergence": "published"}, K),
        ({"kl_weight": 0.25}, 0.25),
    ):
        objective = ppl_bnn.Rank1ELBO(per_example=per_example, **options)
        run = jax.vmap(lambda key: objective.loss(key, PARAMS, model, guide, X, Y))  # noqa: B023
        losses = np.asarray(jax.jit(run)(keys), float)
        error = losses.std() / np.sqrt(len(losses))
        expected = -(likelihood + prior - weight * divergence)
        assert abs(losses.mean() - expected) < 4 * error
        assert error < 0.005 * abs(expected)


def test_the_log_mixture_is_never_below_the_average():
    for seed in range(20):
        for per_example in (True, False):
            options = {"seed": seed, "per_example": per_example}
            assert loss(objective="log_mixture", **options) < loss(**options)
    one = ppl_bnn.AutoRank1(model, num_components=1)
    params = PARAMS | {name: PARAMS[name][:1] for name in ("net.r_auto_loc", "net.r_auto_scale")}
    mixed, average = (loss(one, params=params, objective=o) for o in ("log_mixture", "average"))
    assert mixed == pytest.approx(float(average), rel=1e-6)


@pytest.mark.parametrize("objective", ["average", "log_mixture"])
def test_the_objective_of_points(objective):
    """Members are points, so that everything is known."""
    guide = ppl_bnn.AutoRank1(model, num_components=K, family="delta")
    members = np.asarray(PARAMS["net.r_auto_loc"], float)
    rows = normal_log(Y[:, None] - X @ members.T - 0.2, NOISE**2)
    mean = np.log(np.exp(rows).mean(axis=1)) if objective == "log_mixture" else rows.mean(axis=1)
    penalty = normal_log(members - 1, PRIOR**2).sum(axis=1).mean()
    expected = -(mean.sum() + penalty + normal_log(0.2, 1.0))
    assert loss(guide, objective=objective) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("objective", ["average", "log_mixture"])
def test_two_sites_and_a_parameter_of_the_model(objective):
    """What is seen twice, with shares of its weight, is seen once; the parameter is the fit's."""

    def twice(x, y=None):
        noise = numpyro.param("noise_auto", 5.0)
        r = numpyro.sample("net.r", dist.Normal(1.0, PRIOR).expand([2]).to_event(1))
        bias = numpyro.sample("bias", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            for name, share in (("y", 0.25), ("y again", 0.75)):
                with handlers.scale(scale=share):
                    numpyro.sample(name, dist.Normal((x * r).sum(-1) + bias, noise), obs=y)

    guide = ppl_bnn.AutoRank1(model, num_components=1, family="delta")
    params = {"bias_auto_point": PARAMS["bias_auto_point"]}
    params["net.r_auto_loc"] = PARAMS["net.r_auto_loc"][:1]
    once = loss(guide, params=params, objective=objective)
    both = loss(guide, params=params | {"noise_auto": NOISE}, model=twice, objective=objective)
    assert both == pytest.approx(float(once), rel=1e-5)


@pytest.mark.parametrize("objective", ["average", "log_mixture"])
def test_minibatches_have_the_full_objective_as_their_mean(objective):
    """Over all of them, and exactly: the members are points here."""
    guide = ppl_bnn.AutoRank1(model, num_components=K, family="delta")
    x, y = X[:6], Y[:6]
    batched = ppl_bnn.mini_batch(model, batch_size=2)
    losses = []
    for rows in combinations(range(6), 2):
        chosen = handlers.substitute(batched, data={"mini_batch": jnp.asarray(rows)})
        losses.append(loss(guide, model=chosen, data=(x, y), objective=objective))
    assert len(set(map(float, losses))) == 15
    full = loss(guide, data=(x, y), objective=objective)
    assert np.mean(losses) == pytest.approx(float(full), rel=1e-5)


def test_a_tied_mean_leaves_the_scale_alone():
    apart = loss(tied_mean=False) - loss(tied_mean=True)
    m = np.asarray(PARAMS["net.r_auto_loc"])
    expected = ((m - 1) ** 2).sum(1).mean() / (2 * PRIOR**2)
    assert apart == pytest.approx(expected, rel=1e-3)


def test_a_divergence_without_closed_form_is_estimated():
    """Normal from Laplace: E |r - 1| of a normal is known."""

    def heavy(x, y=None):
        return model(x, y, dist.Laplace(1.0, PRIOR))

    guide, objective = ppl_bnn.AutoRank1(heavy, num_components=K), ppl_bnn.Rank1ELBO()
    without = ppl_bnn.Rank1ELBO(kl_weight=0.0)

    def divergence(key):
        args = key, PARAMS, heavy, guide, X, Y
        return objective.loss(*args) - without.loss(*args)

    found = np.asarray(jax.jit(jax.vmap(divergence))(jax.random.split(KEY, 2000)), float)
    m, v = (np.asarray(PARAMS[f"net.r_auto_{name}"], float) for name in ("loc", "scale"))
    apart = np.abs(m - 1) / v
    distance = v * np.sqrt(2 / np.pi) * np.exp(-(apart**2) / 2) + np.abs(m - 1) * erf(
        apart / 2**0.5
    )
    entropy = np.log(v) + 0.5 * np.log(2 * np.pi * np.e)
    expected = (distance / PRIOR + np.log(2 * PRIOR) - entropy).sum(axis=1).mean()
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(len(found)) + 1e-3


@pytest.mark.slow
def test_svi_finds_the_posterior_of_a_linear_regression():
    """One component on orthogonal features, so that the posterior factorises."""
    q, _ = np.linalg.qr(X - X.mean(0))
    x = (np.sqrt(N) * q).astype(np.float32)
    guide = ppl_bnn.AutoRank1(model, num_components=1)
    svi = SVI(model, guide, optax.adam(0.01), ppl_bnn.Rank1ELBO(num_particles=4))
    result = svi.run(KEY, 3000, x, Y, progress_bar=False)
    draws = guide.sample_posterior(KEY, result.params, 4000)
    assert draws["net.r"].shape == (1, 4000, 2) and draws["bias"].shape == (1, 4000)
    precision = N / NOISE**2 + 1 / PRIOR**2
    mean = (x.T @ Y / NOISE**2 + 1 / PRIOR**2) / precision
    found = np.asarray(draws["net.r"][0])
    np.testing.assert_allclose(found.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(found.std(0), precision**-0.5, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_is_fitted_and_predicts(family):
    near_one = {
        "normal": dist.Normal(1, 0.1),
        "cauchy": dist.Cauchy(1, 0.1),
        "log_normal": dist.LogNormal(0, 0.1),
        "half_cauchy": dist.HalfCauchy(1.0),
        "delta": dist.Normal(1, 0.1),
        "dropout": dist.Normal(1, 0.1),
    }[family]
    net = models.rank1(models.MLP(2, (8,), 1), clip=10.0)
    prior = {"*.r": near_one, "*.s": near_one, "*": priors.fan_in_normal()}
    bnn = models.regression(net, prior, noise=NOISE)
    guide = ppl_bnn.AutoRank1(bnn, num_components=4, family=family)
    objective = ppl_bnn.Rank1ELBO(kl_weight=0.1)
    svi = SVI(ppl_bnn.mini_batch(bnn, batch_size=20), guide, optax.adam(0.01), objective)
    result = svi.run(KEY, 500, X, Y, progress_bar=False)
    assert result.losses[-50:].mean() < result.losses[:20].mean()
    draws = guide.sample_posterior(KEY, result.params, 5)
    assert {value.shape[:2] for value in draws.values()} == {(4, 5)}
    kernels = draws["net/layers.0.layer.kernel"]
    np.testing.assert_array_equal(kernels, np.broadcast_to(kernels[0, 0], kernels.shape))
    prediction = ppl_bnn.predict(draws, X, model=bnn, group_by_chain=True)
    error = np.asarray(prediction.mean) - Y
    if family == "dropout":
        assert set(np.unique(draws["net/layers.0.r"])) == {0, np.float32(1 / 0.9)}
    if family != "half_cauchy":  # whose draws spread over decades, as far as `clip` lets them
        assert np.sqrt(np.mean(error**2)) < 1.0 < Y.std()
    if family in ("log_normal", "half_cauchy"):
        assert (np.asarray(draws["net/layers.0.r"]) > 0).all()


def test_scales_of_handlers_weigh_divergences():
    def weighted(x, y=None):
        with handlers.scale(scale=0.25):
            return model(x, y)

    assert loss(model=weighted) == pytest.approx(0.25 * float(loss()), rel=1e-5)


def test_dropout_has_no_divergence_and_drops_so_often():
    guide = ppl_bnn.AutoRank1(model, num_components=1, family="dropout", dropout_rate=0.3)
    params = {"net.r_auto_loc": jnp.ones((1, 2)), "bias_auto_point": PARAMS["bias_auto_point"]}
    apart = loss(guide, params=params) - loss(guide, params=params, kl_weight=0.0)
    assert apart == 0
    factors = np.asarray(guide.sample_posterior(KEY, params, 4000)["net.r"])
    assert set(np.unique(factors)) == {0, np.float32(1 / 0.7)}
    assert np.mean(factors == 0) == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / factors.size))


def test_mean_field_sites_are_shared_by_components():
    """A point less, a normal more: its divergence counts once, not for each component."""
    guide = ppl_bnn.AutoRank1(model, num_components=K, mean_field=("bias",), init_scale=0.2)
    params = {name: PARAMS[name] for name in ("net.r_auto_loc", "net.r_auto_scale")}
    params |= {"bias_auto_mean": jnp.float32(0.2), "bias_auto_width": jnp.float32(0.3)}
    likelihood, divergence, _ = bound_by_hand()
    likelihood -= N * 0.3**2 / (2 * NOISE**2)
    common = -np.log(0.3) + (0.3**2 + 0.2**2 - 1) / 2
    for options, weight in (({}, 1), ({"divergence": "published"}, K)):
        objective = ppl_bnn.Rank1ELBO(**options)
        run = jax.vmap(lambda key: objective.loss(key, params, model, guide, X, Y))  # noqa: B023
        losses = np.asarray(jax.jit(run)(jax.random.split(KEY, 4000)), float)
        error = losses.std() / np.sqrt(len(losses))
        assert abs(losses.mean() + likelihood - weight * divergence - common) < 4 * error
        assert error < 0.01 * losses.mean()
    trace = handlers.trace(handlers.seed(guide, 0)).get_trace(X, Y)
    assert trace["bias_auto_width"]["value"] == pytest.approx(0.2)
    assert isinstance(trace["bias"]["fn"], dist.Normal)
    draws = guide.sample_posterior(KEY, params, 500)["bias"]
    assert draws.shape == (K, 500) and draws.std() == pytest.approx(0.3, rel=0.1)

    def positive(x, y=None):
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(0, sd), obs=y)

    with pytest.raises(ValueError, match="a normal posterior, but its support is"):
        handlers.seed(ppl_bnn.AutoRank1(positive, factors=(), mean_field=("*",)), 0)(X, Y)


def test_without_factors_the_guide_is_the_mode():
    guide = ppl_bnn.AutoRank1(model, num_components=1, factors=())
    params = {"bias_auto_point": PARAMS["bias_auto_point"]}
    params["net.r_auto_point"] = members = PARAMS["net.r_auto_loc"][0]
    joint = normal_log(Y - X @ np.asarray(members, float) - 0.2, NOISE**2).sum()
    joint += normal_log(np.asarray(members) - 1, PRIOR**2).sum() + normal_log(0.2, 1.0)
    assert loss(guide, params=params) == pytest.approx(-joint, rel=1e-5)


@pytest.mark.parametrize("assignment", ["split", "sampled"])
@pytest.mark.parametrize("per_example", [True, False])
def test_components_that_see_other_rows(assignment, per_example):
    """The mean is that of the tiled objective."""
    likelihood, divergence, prior = bound_by_hand()
    guide = ppl_bnn.AutoRank1(model, num_components=K)
    objective = ppl_bnn.Rank1ELBO(assignment=assignment, per_example=per_example)
    batched = ppl_bnn.mini_batch(model, batch_size=6)
    run = jax.vmap(lambda key: objective.loss(key, PARAMS, batched, guide, X, Y))
    losses = np.asarray(jax.jit(run)(jax.random.split(KEY, 20_000)), float)
    error = losses.std() / np.sqrt(len(losses))
    assert abs(losses.mean() + likelihood + prior - divergence) < 4 * error
    assert error < 0.01 * losses.mean()


def test_where_locations_begin():
    def start(**options):
        guide = ppl_bnn.AutoRank1(model, num_components=500, **options)
        trace = handlers.trace(handlers.seed(guide, 0)).get_trace(X, Y)
        return {name: site["value"] for name, site in trace.items() if site["type"] == "param"}

    loc = np.asarray(start(init_spread=0.2)["net.r_auto_loc"])
    assert loc.mean() == pytest.approx(1, abs=0.03) and loc.std() == pytest.approx(0.2, rel=0.1)
    signs = np.asarray(start(random_sign=0.75)["net.r_auto_loc"])
    assert set(np.unique(signs)) == {-1, 1} and (signs > 0).mean() == pytest.approx(0.75, abs=0.05)
    assert start(scale="shared")["net.r_auto_scale"].shape == (500, 1)
    assert "net.r_auto_scale" not in start(scale="fixed")
    assert "net.r_auto_scale" not in start(family="delta")
    assert set(start(family="half_cauchy")) == {"net.r_auto_scale", "bias_auto_point"}


def test_what_cannot_be(as_users_run):
    cauchy = ppl_bnn.AutoRank1(model, num_components=K, family="cauchy")
    with pytest.raises(ValueError, match=r"divergence of 'net\.r' is infinite"):
        loss(cauchy)
    with pytest.raises(TypeError, match="`guide` must be an AutoRank1"):
        loss(lambda x, y: None)

    def plain(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(w, 1), obs=y)

    with pytest.raises(ValueError, match=r"no site of the model fits `factors`.*\['w'\]"):
        handlers.seed(ppl_bnn.AutoRank1(plain), 0)(X, Y)
    with pytest.raises(ValueError, match="`tied_mean` is for normal priors"):
        heavy = lambda x, y=None: model(x, y, dist.Laplace(1.0, 0.1))  # noqa: E731
        loss(model=heavy, tied_mean=True)
    for options, message in (
        ({"family": "gauss"}, "`family` must be"),
        ({"num_components": 0}, "`num_components` must be"),
        ({"init_scale": 0.0}, "`init_scale` must be positive"),
        ({"random_sign": 1.5}, "`random_sign` is a probability"),
        ({"random_sign": 0.5, "family": "log_normal"}, "positive values"),
        ({"factors": "*.r"}, "`factors` must be a sequence"),
        ({"mean_field": "*"}, "`mean_field` must be a sequence"),
        ({"dropout_rate": 1.0}, "`dropout_rate` must be in"),
    ):
        with pytest.raises(ValueError, match=message):
            ppl_bnn.AutoRank1(model, **options)
    for options, message in (
        ({"objective": "mean"}, "`objective` must be"),
        ({"divergence": "sum"}, "`divergence` must be"),
        ({"assignment": "all"}, "`assignment` must be"),
        ({"per_example": "flip"}, "`per_example` must be"),
        ({"objective": "log_mixture", "assignment": "split"}, "every component at every row"),
        ({"kl_weight": -1.0}, "`kl_weight` must be"),
        ({"num_particles": 0}, "`num_particles` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            ppl_bnn.Rank1ELBO(**options)


@pytest.mark.parametrize("family", ["normal", "cauchy", "log_normal"])
def test_flipped_draws_have_the_law_of_independent_ones(family):
    """Each by itself; together they share the sizes of deviations, not their signs."""
    guide = ppl_bnn.AutoRank1(model, num_components=1, family=family)
    rows, values = 3, 40
    keys = jax.random.split(KEY, 5000)
    draws = jax.vmap(lambda key: flipped(key, guide, (2, rows), values))(keys)
    assert draws.shape == (5000, 2, rows, values)
    law = cauchy if family == "cauchy" else norm
    first = np.asarray(draws)[:, 0, 0, ::13].ravel()
    assert kstest(first, law.cdf).pvalue > 1e-3
    np.testing.assert_array_equal(np.abs(draws[:, :, 0]), np.abs(draws[:, :, 1]))
    signs = np.sign(np.asarray(draws, float))[:, 0].reshape(5000, -1)
    together = signs.T @ signs / 5000 - np.eye(rows * values)
    assert np.abs(together).max() < 5 / np.sqrt(5000)


def test_flipped_draws_leave_the_objective_and_quieten_its_gradient():
    likelihood, divergence, prior = bound_by_hand()
    guide = ppl_bnn.AutoRank1(model, num_components=K)
    keys = jax.random.split(KEY, 4000)
    spread = {}
    for per_example in (True, "flipped", False):
        objective = ppl_bnn.Rank1ELBO(per_example=per_example)

        def of(key):
            own = jax.value_and_grad(lambda params: objective.loss(key, params, model, guide, X, Y))  # noqa: B023
            return own(PARAMS)

        losses, slopes = jax.jit(jax.vmap(of))(keys)
        error = np.std(losses) / np.sqrt(len(losses))
        assert abs(np.mean(losses) + likelihood + prior - divergence) < 4 * error
        spread[per_example] = float(np.std(slopes["net.r_auto_loc"], axis=0).mean())
    assert spread[True] < 0.5 * spread[False] and spread["flipped"] < 0.5 * spread[False]
