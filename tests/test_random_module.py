"""random_module: every weight of a network of any library becomes a sample site with a prior."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal

from ppl_bnn import priors
from ppl_bnn.networks import as_network
from ppl_bnn.random_module import initial_weights, random_module

X = jax.random.normal(jax.random.key(1), (6, 3))
STANDARD = dist.Normal(0, 1)


class NnxNet(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](jnp.tanh(self.layers[0](x)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        hidden = jnp.tanh(linen.Dense(4)(x))
        return linen.Dense(2)(hidden)


def eqx_net():
    return eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(0))


NETS = {"nnx": NnxNet, "linen": LinenNet, "equinox": eqx_net}
SHAPES = {
    "nnx": {
        "net/layers.0.kernel": (3, 4),
        "net/layers.0.bias": (4,),
        "net/layers.1.kernel": (4, 2),
        "net/layers.1.bias": (2,),
    },
    "linen": {
        "net/Dense_0.kernel": (3, 4),
        "net/Dense_0.bias": (4,),
        "net/Dense_1.kernel": (4, 2),
        "net/Dense_1.bias": (2,),
    },
    "equinox": {
        "net/layers.0.weight": (4, 3),
        "net/layers.0.bias": (4,),
        "net/layers.1.weight": (2, 4),
        "net/layers.1.bias": (2,),
    },
}


def trace(net, prior=STANDARD, x=X, name="net"):
    def model():
        return random_module(name, net, prior)(x)

    return handlers.trace(handlers.seed(model, 0)).get_trace()


def model_of(net, prior=STANDARD):
    def model(x, y=None):
        mean = random_module("net", net, prior)(x)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 0.1).to_event(1), obs=y)

    return model


@pytest.fixture
def without_type_checks(monkeypatch):
    """What users run: the package's own errors instead of beartype's."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize("library", NETS)
def test_every_parameter_is_one_site_of_event_dimensions(library):
    sites = trace(NETS[library]())
    assert {name: site["value"].shape for name, site in sites.items()} == SHAPES[library]
    for name, site in sites.items():
        assert site["type"] == "sample" and not site["is_observed"]
        assert site["fn"].batch_shape == () and site["fn"].event_shape == SHAPES[library][name]


@pytest.mark.parametrize("library", NETS)
def test_network_with_its_own_weights_gives_its_own_outputs(library):
    net = NETS[library]()
    weights = initial_weights("net", net, X, rng_key=jax.random.key(3))
    with handlers.seed(rng_seed=0), handlers.substitute(data=weights):
        outputs = random_module("net", net, STANDARD)(X)
    expected = {
        "nnx": lambda: net(X),
        "linen": lambda: net.apply(net.init(jax.random.key(3), X), X),
        "equinox": lambda: jax.vmap(net)(X),
    }[library]()
    assert set(weights) == set(SHAPES[library])
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)


@pytest.mark.parametrize("library", NETS)
def test_sampled_weights_replace_the_networks_own(library):
    net = NETS[library]()
    zeros = {name: jnp.zeros(shape) for name, shape in SHAPES[library].items()}
    with handlers.seed(rng_seed=0), handlers.substitute(data=zeros):
        np.testing.assert_array_equal(random_module("net", net, STANDARD)(X), np.zeros((6, 2)))


@pytest.mark.parametrize("library", NETS)
def test_repeated_calls_share_weights(library):
    def model():
        net = random_module("net", NETS[library](), STANDARD)
        return net(X), net(X[:2]), net(X)

    sites = handlers.trace(handlers.seed(model, 0)).get_trace()
    first, part, again = handlers.seed(model, 0)()
    assert len(sites) == 4
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first[:2], part, rtol=1e-5)


@pytest.mark.parametrize("library", NETS)
def test_density_and_gradient(library):
    """log p(w) is the prior's, and the gradient reaches every weight through the network."""
    sites = trace(NETS[library]())
    weights = {name: site["value"] for name, site in sites.items()}

    def log_density(weights, y):
        return numpyro.infer.util.log_density(model_of(NETS[library]()), (X, y), {}, weights)[0]

    prior_only = numpyro.infer.util.log_density(
        lambda: random_module("net", NETS[library](), STANDARD)(X), (), {}, weights
    )[0]
    expected = sum(STANDARD.log_prob(value).sum() for value in weights.values())
    np.testing.assert_allclose(prior_only, expected, rtol=1e-5)
    gradient = jax.jit(jax.grad(log_density))(weights, jnp.ones((6, 2)))
    for name, value in gradient.items():
        assert np.abs(value + weights[name]).min() > 1e-3, name


TARGETS = jnp.stack([X[:, 0], X[:, 1]], 1)


# MCMC with the other two libraries is tested with the ready models.
def test_nuts_and_predictive():
    model = model_of(NnxNet(), priors.fan_in_normal())
    mcmc = MCMC(
        NUTS(model, max_tree_depth=3),
        num_warmup=10,
        num_samples=10,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, TARGETS)
    samples = mcmc.get_samples(group_by_chain=True)
    assert {name: value.shape[2:] for name, value in samples.items()} == SHAPES["nnx"]
    for name, value in samples.items():
        assert np.isfinite(value).all()
        assert (value.std(axis=1) > 1e-4).all(), f"{name} does not move"
    for parallel in (False, True):
        predictive = Predictive(model, mcmc.get_samples(), parallel=parallel)
        assert predictive(jax.random.key(1), X)["y"].shape == (20, 6, 2)


@pytest.mark.parametrize("library", ["linen", "equinox"])
def test_svi(library):
    model = model_of(NETS[library](), priors.fan_in_normal())
    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.05), Trace_ELBO())
    result = svi.run(jax.random.key(0), 40, X, TARGETS, progress_bar=False)
    assert result.losses[-1] < result.losses[0]
    assert set(result.params) == {
        f"{name}_auto_{part}" for name in SHAPES[library] for part in ("loc", "scale")
    }


def test_initial_weights_start_a_sampler():
    net = NnxNet()
    weights = initial_weights("net", net)
    start = numpyro.infer.util.initialize_model(
        jax.random.key(0),
        model_of(net),
        model_args=(X, jnp.ones((6, 2))),
        init_strategy=init_to_value(values=weights),
    ).param_info.z
    np.testing.assert_array_equal(start["net/layers.0.kernel"], net.layers[0].kernel.get_value())
    with pytest.raises(ValueError, match="Linen network has no weights before it sees data"):
        initial_weights("net", LinenNet())


def test_network_is_not_changed():
    net = NnxNet()
    before = jax.tree.map(jnp.copy, nnx.state(net))
    jax.jit(lambda key: handlers.seed(random_module, key)("net", net, STANDARD)(X))(
        jax.random.key(0)
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), before, nnx.state(net)))


def test_same_name_twice_is_numpyros_own_error():
    def model():
        random_module("net", NnxNet(), STANDARD)
        random_module("net", NnxNet(), STANDARD)

    with pytest.raises(AssertionError, match="unique names"):
        handlers.trace(handlers.seed(model, 0)).get_trace()


def test_tied_weights_are_one_site():
    class Tied(nnx.Module):
        def __init__(self):
            self.first = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
            self.second = self.first

        def __call__(self, x):
            return self.second(self.first(x))

    assert set(trace(Tied())) == {"net/first.kernel", "net/first.bias"}


@pytest.mark.parametrize("library", NETS)
def test_eval_shape_and_vmap_over_weights(library):
    def outputs(key):
        return handlers.seed(random_module, key)("net", NETS[library](), STANDARD)

    def call(key):
        with handlers.seed(rng_seed=key):
            return random_module("net", NETS[library](), STANDARD)(X)

    assert jax.eval_shape(call, jax.random.key(0)).shape == (6, 2)
    many = jax.vmap(call)(jax.random.split(jax.random.key(0), 3))
    assert many.shape == (3, 6, 2)
    np.testing.assert_allclose(many[1], call(jax.random.split(jax.random.key(0), 3)[1]), rtol=1e-5)


# Priors


def scale_of(site):
    base = site["fn"]
    while hasattr(base, "base_dist"):
        base = base.base_dist
    return float(np.ravel(base.scale)[0])


def test_dict_exact_path_first_then_first_pattern_in_order():
    prior = {
        "*.bias": dist.Normal(0, 2),
        "layers.*": dist.Normal(0, 3),
        "layers.1.bias": dist.Normal(0, 4),
        "*": dist.Normal(0, 5),
    }
    sites = trace(NnxNet(), prior)
    assert {name: scale_of(site) for name, site in sites.items()} == {
        "net/layers.0.bias": 2,
        "net/layers.0.kernel": 3,
        "net/layers.1.bias": 4,
        "net/layers.1.kernel": 3,
    }


def test_dict_may_hold_callables():
    sites = trace(NnxNet(), {"*.bias": dist.Normal(0, 7), "*": priors.fan_in_normal(gain=2.0)})
    assert scale_of(sites["net/layers.1.kernel"]) == 1.0
    assert scale_of(sites["net/layers.1.bias"]) == 7.0


@pytest.mark.parametrize("library", NETS)
def test_parameters_without_prior_are_named(library):
    one = next(iter(SHAPES[library])).removeprefix("net/")
    missing = [name.removeprefix("net/") for name in list(SHAPES[library])[1:]]
    with pytest.raises(ValueError, match="gives nothing for the parameters") as error:
        trace(NETS[library](), {one: STANDARD})
    for path in missing:
        assert repr(path) in str(error.value)
    assert repr(one) not in str(error.value)


def test_callable_that_gives_nothing_is_named():
    with pytest.raises(ValueError, match=r"nothing for the parameters \['layers.0.bias'\]"):
        trace(NnxNet(), lambda path, shape: None if path == "layers.0.bias" else STANDARD)


@pytest.mark.parametrize("key", ["layers.2.kernel", "dense*"])
def test_key_that_matches_nothing_lists_the_parameters(key):
    with pytest.raises(ValueError, match=r"match no parameter: \['.*'\].*'layers.1.kernel'") as e:
        trace(NnxNet(), {"*": STANDARD, key: STANDARD})
    assert key in str(e.value)


def test_special_pattern_behind_its_general_one():
    with pytest.raises(ValueError, match=r"'\*.bias' is never used, because '\*' comes before"):
        trace(NnxNet(), {"*": STANDARD, "*.bias": dist.Normal(0, 9)})


def test_default_pattern_may_find_nothing_left():
    trace(NnxNet(), {"*.bias": STANDARD, "*.kernel": STANDARD, "*": STANDARD})


@pytest.mark.parametrize("bad", [dist.Normal, 1.0, "normal"])
def test_prior_of_wrong_type(bad, without_type_checks):
    for prior in (bad, {"*": bad}):
        with pytest.raises(TypeError, match=r"must be a NumPyro distribution .* got"):
            trace(NnxNet(), prior)


def test_broadcasting_priors():
    per_output = dist.Normal(jnp.zeros(4), jnp.array([1.0, 2.0, 3.0, 4.0]))
    rows = dist.MultivariateNormal(jnp.zeros(4), jnp.eye(4))
    sites = trace(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), {"kernel": rows, "bias": per_output})
    assert sites["net/kernel"]["value"].shape == sites["net/kernel"]["fn"].event_shape == (3, 4)
    expected = rows.log_prob(sites["net/kernel"]["value"]).sum()
    value, fn = sites["net/kernel"]["value"], sites["net/kernel"]["fn"]
    np.testing.assert_allclose(fn.log_prob(value), expected, rtol=1e-5)
    np.testing.assert_allclose(sites["net/bias"]["fn"].variance, [1.0, 4.0, 9.0, 16.0])


def test_elements_are_independent():
    kernel = trace(nnx.Linear(50, 40, rngs=nnx.Rngs(0)), x=jnp.ones((1, 50)))["net/kernel"]["value"]
    assert len(np.unique(kernel)) > 1900
    np.testing.assert_allclose(kernel.std(), 1.0, atol=0.1)


@pytest.mark.parametrize(
    "prior",
    [
        dist.Normal(jnp.zeros(5), 1.0),
        dist.Normal(jnp.zeros((2, 3, 4)), 1.0),
        dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)),
    ],
)
def test_prior_that_does_not_fit(prior):
    with pytest.raises(ValueError, match=r"'kernel' does not fit.*broadcast to \(3, 4\)"):
        trace(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), {"kernel": prior, "bias": STANDARD})


def test_hierarchical_prior():
    def prior(path, shape):
        if path.endswith("bias"):
            return STANDARD
        scale = numpyro.sample(f"{path}.scale", dist.HalfNormal(1.0))
        unit = numpyro.sample(f"{path}.unit", STANDARD.expand(shape).to_event(len(shape)))
        return scale * unit

    net = NnxNet()
    sites = trace(net, prior)
    assert {"net/layers.0.kernel.scale", "net/layers.0.kernel.unit"} < set(sites)
    assert "net/layers.0.kernel" not in sites
    data = {name: jnp.zeros_like(sites[name]["value"]) for name in sites if "kernel" not in name}
    data["net/layers.0.kernel.scale"] = data["net/layers.1.kernel.scale"] = jnp.array(0.0)
    with handlers.seed(rng_seed=0), handlers.substitute(data=data):
        np.testing.assert_array_equal(random_module("net", net, prior)(X), np.zeros((6, 2)))


def test_callable_array_of_wrong_shape_or_type():
    with pytest.raises(ValueError, match=r"array of shape \(4,\) for parameter 'layers.0.kernel'"):
        trace(NnxNet(), lambda path, shape: jnp.zeros(shape[-1:]) if len(shape) > 1 else STANDARD)
    with pytest.raises(TypeError, match=r"prior callable gave 1.0 for 'layers.0.bias'"):
        trace(NnxNet(), lambda path, shape: 1.0)


@pytest.mark.parametrize("library", NETS)
def test_inside_a_plate(library):
    def model():
        with numpyro.plate("data", 6):
            random_module("net", NETS[library](), STANDARD)(X)

    with pytest.raises(ValueError, match="inside a plate"):
        handlers.seed(model, 0)()


def test_values_of_another_network():
    with handlers.seed(rng_seed=0), handlers.substitute(data={"net/kernel": jnp.ones((3, 5))}):
        with pytest.raises(ValueError, match=r"'kernel' has shape \(3, 4\).*another network"):
            random_module("net", nnx.Linear(3, 4, rngs=nnx.Rngs(0)), STANDARD)


# Networks


@pytest.mark.parametrize(
    ("net", "got"), [(NnxNet, "the class NnxNet"), (jnp.tanh, "a "), ({"w": X}, "a dict")]
)
def test_unknown_network(net, got):
    with pytest.raises(TypeError, match=f"flax.linen.Module or equinox.Module, got {got}"):
        trace(net)


def test_network_without_parameters():
    with pytest.raises(ValueError, match=r"no parameters to sample \(Sequential\)"):
        trace(nnx.Sequential(jnp.tanh))


class NnxDropout(nnx.Module):
    def __init__(self, rate):
        self.dense = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(rate, rngs=nnx.Rngs(1))

    def __call__(self, x, **kwargs):
        return self.dropout(self.dense(x), **kwargs)


def test_nnx_dropout():
    net = NnxDropout(0.5)
    with pytest.raises(ValueError, match=r"draws random numbers.*dropout.*net.eval\(\)"):
        trace(net)
    assert net.dropout.rngs.count.get_value() == 0
    assert set(trace(NnxDropout(0.0))) == {"net/dense.kernel", "net/dense.bias"}
    with handlers.seed(rng_seed=0):
        random_module("net", net, STANDARD)(X, deterministic=True)
    net.eval()
    trace(net)


def test_nnx_dropout_in_attention():
    net = nnx.MultiHeadAttention(
        2, 4, dropout_rate=0.5, deterministic=False, decode=False, rngs=nnx.Rngs(0)
    )
    with pytest.raises(ValueError, match="draws random numbers"):
        trace(net, x=jnp.ones((2, 3, 4)))
    net.eval()
    assert trace(net, x=jnp.ones((2, 3, 4)))["net/query.kernel"]["value"].shape == (4, 2, 2)


def test_linen_dropout():
    class Net(linen.Module):
        deterministic: bool = False

        @linen.compact
        def __call__(self, x):
            return linen.Dropout(0.5, deterministic=self.deterministic)(linen.Dense(2)(x))

    with pytest.raises(ValueError, match=r"draws random numbers.*Dropout_0.*deterministic=True"):
        trace(Net())
    with handlers.seed(rng_seed=0), pytest.raises(ValueError, match="draws random numbers"):
        random_module("net", Net(), STANDARD)(X, rngs={"dropout": jax.random.key(0)})
    assert set(trace(Net(deterministic=True))) == {"net/Dense_0.kernel", "net/Dense_0.bias"}


def test_equinox_dropout():
    key = jax.random.key(0)
    net = eqx.nn.Sequential([eqx.nn.Linear(3, 2, key=key), eqx.nn.Dropout(0.5)])
    with pytest.raises(ValueError, match=r"draws random numbers.*layers\.1.*inference_mode"):
        trace(net)
    assert len(trace(eqx.nn.inference_mode(net))) == 2
    assert len(trace(eqx.nn.Sequential([eqx.nn.Linear(3, 2, key=key), eqx.nn.Dropout(0)]))) == 2


def test_batch_norm():
    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.BatchNorm(use_running_average=False)(linen.Dense(2)(x))

    nets = {
        "layers.1.mean": nnx.Sequential(
            nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0))
        ),
        "BatchNorm_0.mean": Linen(),
        "layers.1": eqx.nn.Sequential(
            [eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.nn.BatchNorm(2, "batch", mode="ema")]
        ),
    }
    for path, net in nets.items():
        with pytest.raises(ValueError, match=f"{path}.*depend on the other rows"):
            trace(net)


def test_other_linen_state():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            self.variable("cache", "last", lambda: x[0])
            return linen.Dense(2)(x)

    with pytest.raises(ValueError, match=r"collections \['cache'\]"):
        trace(Net())


def test_layer_norm_and_constants_are_fine():
    class Net(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
            self.norm = nnx.LayerNorm(2, rngs=nnx.Rngs(0))
            self.shift = jnp.ones(2)

        def __call__(self, x):
            return self.norm(self.dense(x)) + self.shift

    assert set(trace(Net())) == {"net/dense.kernel", "net/dense.bias", "net/norm.scale"} | {
        "net/norm.bias"
    }


def test_equinox_takes_several_inputs_and_keywords():
    class Net(eqx.Module):
        weight: jax.Array

        def __call__(self, a, b, *, sign):
            assert a.ndim == 1
            return sign * (self.weight @ a + b)

    with handlers.seed(rng_seed=0), handlers.substitute(data={"net/weight": jnp.ones((2, 3))}):
        outputs = random_module("net", Net(jnp.zeros((2, 3))), STANDARD)(X, X[:, :2], sign=-1)
    np.testing.assert_allclose(outputs, -(X.sum(1, keepdims=True) + X[:, :2]), rtol=1e-5, atol=1e-6)


def test_equinox_is_optional(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "equinox", None)
    as_network(NnxNet())
    with pytest.raises(TypeError, match="got a dict"):
        as_network({})
