"""Elastic deformations: identity at strength 0, displacements as large as asked, seeded."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from ppl_bnn import datasets
from ppl_bnn.datasets.elastic import displacements


@pytest.fixture(scope="module")
def digits(raw):
    return raw("images/mnist_small.npz")["x_train"][::500]


def made(images, number, **options):
    return np.concatenate(list(datasets.elastic(images, number, **options)))


def test_no_strength_gives_the_images_back(digits):
    np.testing.assert_array_equal(made(digits, 25, alpha=0.0), digits[np.arange(25) % 10])


@pytest.mark.parametrize(("alpha", "sigma"), [(34.0, 4.0), (8.0, 2.0)])
def test_deviation_of_the_displacements(alpha, sigma):
    moves = displacements(np.arange(2000), (28, 28), seed=0, alpha=alpha, sigma=sigma)
    # a sum of uniform variables of variance 1/3, weighted by the kernel in two dimensions
    impulse = np.zeros(28)
    impulse[0] = 1
    kernel = gaussian_filter1d(impulse, sigma, mode="wrap")
    expected = alpha * np.sqrt(1 / 3) * np.sum(kernel**2)
    assert expected == pytest.approx(alpha / (sigma * np.sqrt(12 * np.pi)), rel=0.01)
    # at each pixel, those of the border too: 2000 images give 1.6 % standard error
    at_pixels = moves.std(axis=1)
    assert moves.std() == pytest.approx(expected, rel=0.01)
    assert (np.abs(at_pixels / expected - 1) < 0.08).all()
    assert abs(moves.mean()) < 0.01 * alpha
    # neighbours move together: correlation exp(-d^2 / (4 sigma^2)) at distance d
    together = np.mean(moves[..., :-1] * moves[..., 1:]) / expected**2
    assert together == pytest.approx(np.exp(-1 / (4 * sigma**2)), abs=0.01)


def test_pixels_move_by_the_displacements():
    """A ramp of grey takes the value of where each pixel looks."""
    ramp = np.tile(np.arange(0, 224, 8, dtype=np.uint8), (28, 1))
    (bent,) = datasets.elastic(ramp[None], 1, alpha=8.0, sigma=4.0, seed=5)
    move = displacements(np.arange(1), (28, 28), seed=5, alpha=8.0, sigma=4.0)[1, 0]
    inner = np.s_[4:-4, 4:-4]
    np.testing.assert_allclose(bent[0][inner], (ramp + 8 * move)[inner], atol=0.51)


def test_chunks_and_numbers_do_not_matter(digits):
    whole = made(digits, 25, seed=3)
    np.testing.assert_array_equal(made(digits, 25, seed=3, chunk_size=4), whole)
    np.testing.assert_array_equal(made(digits, 12, seed=3), whole[:12])
    assert not np.array_equal(made(digits, 25, seed=4), whole)
    assert not np.array_equal(whole[:10], whole[10:20])  # an image is bent anew each time
    chunks = datasets.elastic(digits, 10, chunk_size=4)
    assert [len(chunk) for chunk in chunks] == [4, 4, 2]


def test_what_is_refused(digits):
    with pytest.raises(ValueError, match=r"must be uint8 of shape.*float64\(10, 28, 28\)"):
        datasets.elastic(digits / 255, 5)
    with pytest.raises(ValueError, match="must be positive"):
        datasets.elastic(digits, 0)


@pytest.mark.slow
def test_mnist_bent(folder):
    original = datasets.mnist(folder)
    data = datasets.elastic_mnist(1000, folder=folder, alpha=0.0)
    assert data.x_train.shape == (1000, 28, 28, 1)
    np.testing.assert_array_equal(data.x_train, original.x_train[:1000])
    np.testing.assert_array_equal(data.y_train, original.y_train[:1000])
    np.testing.assert_array_equal(data.x_test, original.x_test)
    bent = datasets.elastic_mnist(1000, folder=folder, prepare=False)
    assert bent.x_train.dtype == np.uint8 and bent.name != original.name
    np.testing.assert_array_equal(bent.y_train, original.y_train[:1000])
    # bent by a pixel or two, a digit covers about as much as before
    share = bent.x_train.mean() / datasets.mnist(folder, prepare=False).x_train[:1000].mean()
    assert share == pytest.approx(1, abs=0.05)
