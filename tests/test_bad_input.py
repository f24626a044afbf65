"""What a user may get wrong, and what they are told, before any long work."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import ppl_bnn

pytestmark = pytest.mark.usefixtures("as_users_run")

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = X[:, 0]
NET = ppl_bnn.models.MLP(3, (4,), 1)
REGRESSION = ppl_bnn.models.regression(NET, ppl_bnn.priors.fan_in_normal())
CLASSES = ppl_bnn.models.classification(
    ppl_bnn.models.MLP(3, (4,), 2), ppl_bnn.priors.fan_in_normal()
)


class Frame:
    """What pandas and polars have in common."""

    def to_numpy(self):
        return X


def start(model, *args, **options):
    kernel = ppl_bnn.HMC(model, **({"warm_start": 0} | options))
    MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False).run(jax.random.key(0), *args)


def with_entry(array, value, index=(4, 1)):
    array = array.copy()
    array[index[: array.ndim]] = value
    return array


def plain(x, y=None):
    """No checks of its own."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@pytest.mark.parametrize("chunk_size", [None, 8])
@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (REGRESSION, (with_entry(X, np.nan), Y), r"`x` has 1 entries that are NaN.*\(4, 1\)"),
        (REGRESSION, (with_entry(X, np.inf), Y), r"`x` has 1 entries that are NaN or infinite"),
        (REGRESSION, (X, with_entry(Y, np.nan)), r"`y` has 1 entries that are NaN.*index \(4,\)"),
        (REGRESSION, (jnp.asarray(with_entry(X, np.nan)), Y), "`x` has 1 entries that are NaN"),
        (plain, (X, Y[:-1]), "different numbers of rows: `x` has 20, `y` has 19"),
        (REGRESSION, (X, Y[:-1]), "20.*19|19.*20"),
        (plain, (X, Y[:1]), "observed value of 'y'.*shape|different numbers of rows"),
        (plain, (X, Y[:, None]), r"has shape \(20, 1\).*has shape \(20,\)|observed value of 'y'"),
        (REGRESSION, (X[:0], Y[:0]), r"`x` has shape \(0, 3\): there are no rows"),
        (CLASSES, (X, Y), "`y`.*float32.*Categorical.*integers"),
        (CLASSES, (X, np.full(20, 2)), "`y`.*20 entries outside.*integers from 0 to 1: 2"),
        (CLASSES, (X, with_entry(np.zeros(20, int), -1)), "`y`.*1 entries outside.*: -1"),
        (plain, (X.astype(object), Y), "`x` has dtype object"),
        (CLASSES, (X, np.array(["a", "b"] * 10)), r"`y` has dtype <U1.*return_inverse=True"),
        (plain, (X,), r"was given \['x'\] but observes nothing: were the targets forgotten"),
        (plain, (X.tolist(), Y), r"`x` is a list; pass an array: `numpy\.asarray\(x\)`"),
        (plain, (with_entry(X.astype(float), 1e39), Y), r"`x` has 1 entries that are NaN or inf"),
        (plain, (Frame(), Y), r"`x` is a Frame; pass an array: `x\.to_numpy\(\)`"),
    ],
)
def test_bad_data(model, args, message, chunk_size):
    with pytest.raises(ValueError, match=message):
        start(model, *args, chunk_size=chunk_size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": -0.1}, "`step_size` must be a positive, finite number, got -0.1"),
        ({"step_size": 0}, "`step_size` must be a positive"),
        ({"step_size": "small"}, "`step_size` must be a positive, finite number, got 'small'"),
        ({"trajectory_length": np.inf}, "`trajectory_length` must be a positive"),
        ({"num_steps": 3, "trajectory_length": 1.0}, "both `num_steps` .3. and `trajectory_"),
        ({"num_steps": 0}, "`num_steps` must be an integer of at least 1, got 0"),
        ({"num_steps": 2.5}, "`num_steps` must be an integer"),
        ({"max_num_steps": 0}, "`max_num_steps` must be an integer of at least 1"),
        ({"warm_start": -1}, "`warm_start` must be an integer of at least 0"),
        ({"chunk_size": 0}, "`chunk_size` must be a positive number of rows or None, got 0"),
        ({"target_accept_prob": 1.0}, "`target_accept_prob` must lie between 0 and 1"),
        ({"temperature": 0.0}, "`temperature` must be a positive"),
        ({"trajectory_jitter": 1.5}, "`trajectory_jitter` must be at least 0 and below 1"),
        ({"adapt_step_size": False}, "`adapt_step_size=False` needs a `step_size`"),
        ({"adapt_step_size": "no"}, "`adapt_step_size` must be True or False"),
        ({"inverse_mass_matrix": "posterior"}, "`inverse_mass_matrix` must be 'prior', 'identity'"),
        ({"init_strategy": "map"}, "`init_strategy` must be 'prior', 'network'"),
        ({"mesh": "all"}, "`mesh` must be a jax.sharding.Mesh"),
        (
            {"num_steps": 9, "max_num_steps": 5, "step_size": 0.1, "adapt_step_size": False},
            "more than `max_num_steps` = 5",
        ),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        start(plain, X, Y, **options)


def test_a_model_that_is_no_function():
    with pytest.raises(ValueError, match="`model` must be a NumPyro model, a function"):
        ppl_bnn.HMC(NET.layers)


def test_mesh_larger_than_the_data():
    with pytest.raises(ValueError, match="over 8 devices, but there are 5 rows"):
        start(plain, X[:5], Y[:5], mesh=ppl_bnn.mesh(data=8))


def test_meshes_that_do_not_divide():
    with pytest.raises(ValueError, match=r"chains=3 does not divide the 8 devices.*data=2"):
        ppl_bnn.mesh(chains=3)
    kernel = ppl_bnn.HMC(plain, mesh=ppl_bnn.mesh(data=2, chains=2), warm_start=0)
    with pytest.raises(ValueError, match="`num_chains` is 3, which the 2 groups"):
        kernel.init(jax.random.split(jax.random.key(0), 3), 1, None, (X, Y), {})


def test_mesh_with_explicit_axes():
    explicit = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with pytest.raises(ValueError, match=r"axes of type jax\.sharding\.AxisType\.Auto"):
        ppl_bnn.HMC(plain, mesh=explicit)


def test_per_datum_latents_are_fine_without_rows_and_refused_with_them():
    def local(x, y=None):
        with numpyro.plate("data", x.shape[0]):
            shift = numpyro.sample("shift", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(x[:, 0] + shift, 1.0), obs=y)

    start(local, X, Y)
    with pytest.raises(ValueError, match="'shift' has one value for each of the 20 rows"):
        start(local, X, Y, mesh=ppl_bnn.mesh(data=2))


def test_subsample_size():
    def subsampled(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0], subsample_size=5) as index:
            numpyro.sample("y", dist.Normal(x[index] @ w, 1.0), obs=y[index])

    with pytest.raises(ValueError, match=r"subsamples 5 of 20 rows.*one minibatch"):
        start(subsampled, X, Y)


def test_infinite_density_at_the_start_names_the_site():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 0 * w), obs=y)

    with pytest.raises(ValueError, match=r"chain 0 cannot start: log density of 'y': -?(inf|nan)"):
        start(model, X, Y)


def test_random_numbers_outside_sample_sites():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        noise = jax.random.normal(numpyro.prng_key(), (x.shape[0],))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x[:, 0] + noise, 1.0), obs=y)

    with pytest.raises(ValueError, match="draws random numbers outside its sample sites"):
        start(model, X, Y)


def test_discrete_latent_site():
    def model(x, y=None):
        k = numpyro.sample("k", dist.Categorical(jnp.ones(2) / 2))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(k * x[:, 0], 1.0), obs=y)

    with pytest.raises(ValueError, match=r"latent site 'k' is discrete \(Categorical"):
        start(model, X, Y)


def test_nothing_to_infer():
    def model(x, y=None):
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x[:, 0], 1.0), obs=y)

    with pytest.raises(ValueError, match="no latent sample site"):
        start(model, X, Y)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"v": jnp.ones(3)}, r"given for \['v'\], but the latent sites are \['w'\]"),
        ({"w": np.full(3, np.nan)}, "initial value of 'w'.*is outside"),
        ({"w": jnp.ones(2)}, r"initial value of 'w' has shape \(2,\), but the site has \(3,\)"),
    ],
)
def test_bad_initial_values(strategy, message):
    with pytest.raises(ValueError, match=message):
        start(plain, X, Y, init_strategy=strategy)


def test_a_prior_without_variance_needs_a_trajectory_length():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Cauchy(0, 2).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"\['w'\] has no finite variance.*`trajectory_length`"):
        start(model, X, Y)
    start(model, X, Y, trajectory_length=1.5)


def test_initial_values_of_other_types_are_cast():
    start(plain, X, Y, init_strategy={"w": np.zeros(3, int)})


def test_a_prior_that_cannot_be_sampled():
    def model(x, y=None):
        w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (3,)))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match="a prior of the model cannot be sampled"):
        start(model, X, Y)


def test_failures_of_the_model_itself_tell_what_it_was_run_on():
    with pytest.raises(Exception) as caught:
        start(plain, Y, X)
    notes = "".join(caught.value.__notes__)
    assert "The model was run on {'x': 'float32(20,)'" in notes


def test_one_row_is_enough():
    start(plain, X[:1], Y[:1])
    start(plain, X[:1], Y[:1], chunk_size=4)
