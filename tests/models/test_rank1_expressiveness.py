"""What perturbations a rank-1 layer can express: Dusenberry et al. (2020), Theorem 1 and section 3.

W is (outputs, inputs) here, as in the paper, so that r and its covariance R go with the first axis
and s and S with the second; the layer's kernel is its transpose.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.linalg
import scipy.optimize
import scipy.special
import scipy.stats
from flax import nnx
from jax.flatten_util import ravel_pytree
from numpyro.infer import Predictive

import ppl_bnn
from ppl_bnn import models
from ppl_bnn.networks import as_network

TOLERANCE = 5.0  # standard errors, of some dozens of figures


def covariance(w, r_cov, s_cov, product=1.0):
    """Cov(W'_ij, W'_kl) at [i, j, k, l], with the term of r and s together counted `product`."""
    r_cov, s_cov = r_cov[:, None, :, None], s_cov[None, :, None, :]
    return w[:, :, None, None] * w * (r_cov + s_cov + product * r_cov * s_cov)


def test_covariance_of_the_perturbed_weight():
    """The layer shows its W' if its inputs are the identity; r and s are skewed and heavy-tailed.

    As many outputs as inputs, so that the formula with R and S swapped exists: it, and the one
    without the product, must fail.
    """
    rng, num_draws = np.random.default_rng(1), 200_000
    layer = models.Rank1(nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(0)))
    mix_r, mix_s = 0.4 * rng.normal(size=(2, 3, 3))
    r = rng.exponential(size=(num_draws, 3)) - 1
    s = rng.laplace(scale=0.5**0.5, size=(num_draws, 3))
    r, s = (jnp.asarray(1 + a, jnp.float32) for a in (r @ mix_r.T, s @ mix_s.T))
    network = as_network(layer)
    values = network.init(None)

    def perturbed(r, s):
        return network.apply(values | {"r": r, "s": s}, jnp.eye(3)).T

    w = np.asarray(values["layer.kernel"], float).T
    moved = (np.asarray(jax.vmap(perturbed)(r, s), float) - w).reshape(num_draws, 9)
    found, square = moved.T @ moved / num_draws, moved**2
    error = np.sqrt((square.T @ square / num_draws - found**2) / num_draws)

    def z(expected):
        return np.abs((found - expected.reshape(9, 9)) / error).max()

    r_cov, s_cov = mix_r @ mix_r.T, mix_s @ mix_s.T
    assert z(covariance(w, r_cov, s_cov)) < TOLERANCE
    assert z(covariance(w, r_cov, s_cov, product=0.0)) > 2 * TOLERANCE
    assert z(covariance(w, s_cov, r_cov)) > 2 * TOLERANCE


def exact_factors(rng, num_draws, covariances):
    """Skewed draws whose sample moments are right, so that no Monte Carlo error is left."""
    whole = scipy.linalg.block_diag(*covariances)
    draws = rng.exponential(size=(num_draws, len(whole)))
    draws -= draws.mean(0)
    whiten = np.linalg.inv(np.linalg.cholesky(draws.T @ draws / num_draws))
    draws = draws @ (np.linalg.cholesky(whole) @ whiten).T
    return np.split(draws, np.cumsum([len(c) for c in covariances])[:-1], axis=1)


def test_covariance_of_the_score_of_small_perturbations():
    """Cov(score) / scale^2 -> H C H^T, with C's leading order: R + S, the product falls away.

    The score is the gradient of the loss in W', at W'. The rank-1 network gives the gradient in its
    kernel, which is the score times the layer's factors; H is of the plain network. Both kernels
    are perturbed at once, each with an r and s of its own, so that C has a block for each.
    """
    names = [f"layers.{i}.{name}" for i in range(2) for name in "rs"]
    with jax.enable_x64(True):
        rng = np.random.default_rng(2)
        net = models.MLP(3, (4,), 3, activation="tanh", rngs=nnx.Rngs(3))
        plain, rank1 = as_network(net), as_network(models.rank1(net))
        x, labels = jnp.asarray(rng.normal(size=(6, 3))), jnp.arange(6) % 3
        biases = {f"layers.{i}.bias": jnp.asarray(rng.normal(size=4 - i)) for i in range(2)}
        kernels = [jnp.asarray(layer.kernel[...], float) for layer in net.layers]
        flat, unflatten = ravel_pytree(kernels)

        def loss(network, path, kernels, values):
            values = values | {path.format(i): kernel for i, kernel in enumerate(kernels)}
            log_probs = jax.nn.log_softmax(network.apply(values | biases, x))
            return -jnp.take_along_axis(log_probs, labels[:, None], 1).sum()

        @jax.jit
        @jax.vmap
        def scores(r0, s0, r1, s1):
            values = dict(zip(names, (r0, s0, r1, s1), strict=True))
            path = "layers.{}.layer.kernel"
            first, second = jax.grad(lambda kernels: loss(rank1, path, kernels, values))(kernels)
            return ravel_pytree([first / jnp.outer(s0, r0), second / jnp.outer(s1, r1)])[0]

        path = "layers.{}.kernel"
        of_plain = jax.jit(lambda flat: loss(plain, path, unflatten(flat), {}))
        hessian = jax.hessian(of_plain)(flat)
        mixes = [rng.normal(size=(size, size)) / size**0.5 for size in (4, 3, 3, 4)]
        covariances = [mix @ mix.T for mix in mixes]
        factors = exact_factors(rng, 1000, covariances)

        def distance(scale, of_r=1.0, of_s=1.0):
            blocks = []
            for i, kernel in enumerate(kernels):
                r_cov, s_cov = of_r * covariances[2 * i], of_s * covariances[2 * i + 1]
                c = covariance(kernel.T, r_cov, s_cov, product=0.0)
                blocks.append(c.transpose(1, 0, 3, 2).reshape(kernel.size, kernel.size))
            expected = hessian @ scipy.linalg.block_diag(*blocks) @ hessian
            found = np.cov(scores(*(1 + scale * part for part in factors)).T, bias=True) / scale**2
            return np.linalg.norm(found - expected) / np.linalg.norm(expected)

        far = np.array([distance(scale) for scale in (1e-1, 1e-2, 1e-3, 1e-4)])
        assert far[0] > far[1] and far[-1] < 1e-3
        np.testing.assert_allclose(far[1:-1], 10 * far[2:], rtol=0.2)  # first order
        for one_is_wrong in ({"of_r": 0.8}, {"of_s": 0.8}):
            assert distance(1e-4, **one_is_wrong) > 0.05


def horseshoe_cdf(x):
    """Mean of the normal's over 1000 quantiles of its scale."""
    scales = scipy.stats.halfcauchy.ppf((np.arange(1000) + 0.5) / 1000)
    return scipy.special.ndtr(np.asarray(x)[..., None] / scales).mean(-1)


INVERSE_GAMMA = dist.TransformedDistribution(  # of the variance, so that its root is the factor
    dist.InverseGamma(1.5, 1.5), dist.transforms.PowerTransform(0.5)
)
MARGINALS = {
    "student-t": (INVERSE_GAMMA, scipy.stats.t(3).cdf),
    "horseshoe": (dist.HalfCauchy(1.0), horseshoe_cdf),
}


@pytest.mark.parametrize("factor", ["r", "s"])
@pytest.mark.parametrize("name", MARGINALS)
def test_marginal_of_the_perturbed_weight(name, factor):
    """A normal weight times one random factor; a normal with the same quartiles must fail."""
    (prior, cdf), num_draws = MARGINALS[name], 10_000
    layer = models.Rank1(nnx.Linear(2, 3, use_bias=False, rngs=nnx.Rngs(0)))
    priors = {"layer.kernel": dist.Normal(0.0, 1.0), factor: prior, "*": dist.Delta(1.0)}

    def model():
        net = ppl_bnn.random_module("net", layer, priors)
        numpyro.deterministic("w", net(jnp.eye(2)).T)

    draws = Predictive(model, num_samples=num_draws, parallel=True)(jax.random.key(4))["w"]
    draws = np.asarray(draws[:, 2, 1], float)
    quantile = scipy.optimize.brentq(lambda q: cdf(q) - 0.995, 0.0, 1e4)
    tail_error = (0.01 * 0.99 / num_draws) ** 0.5

    def tail_z(draws):
        return abs((np.abs(draws) > quantile).mean() - 0.01) / tail_error

    assert scipy.stats.kstest(draws, cdf).pvalue > 0.001
    assert tail_z(draws) < 4
    upper_quartile = scipy.optimize.brentq(lambda q: cdf(q) - 0.75, 0.0, 1e4)
    normal = np.random.default_rng(5).normal(size=num_draws) * upper_quartile / 0.6745
    assert scipy.stats.kstest(normal, cdf).pvalue < 0.001
    assert tail_z(normal) > 4
