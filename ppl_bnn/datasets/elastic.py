"""More MNIST: images bent by smooth random displacements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy import ndimage

from ppl_bnn.datasets.dataset import Dataset
from ppl_bnn.datasets.images import Folder, scale
from ppl_bnn.datasets.mnist import MNIST, mnist

ALPHA, SIGMA = 34.0, 4.0


def elastic_mnist(
    num_images: int = 100_000,
    *,
    seed: int = 0,
    alpha: float = ALPHA,
    sigma: float = SIGMA,
    folder: Folder = None,
    prepare: bool = True,
    check: bool = True,
) -> Dataset:
    """MNIST with its training images bent, as many as wanted; test images are the originals.

    Parameters
    ----------
    num_images
        Training images. Image i comes from image ``i % 60_000`` of MNIST and has its label.
    seed, alpha, sigma
        As for `elastic`.
    folder, prepare, check
        As for `mnist`.

    Returns
    -------
    Dataset
        With `train_rows` the positions in MNIST. Float32 images (`prepare`) take 3 KB each.

    Raises
    ------
    FileNotFoundError, ValueError
        As `mnist` and `elastic`.
    """
    data = mnist(folder, prepare=False, check=check)
    chunks = elastic(data.x_train, num_images, seed=seed, alpha=alpha, sigma=sigma)
    rows = np.arange(num_images) % len(data.y_train)
    x_train, x_test = np.concatenate(list(chunks)), data.x_test
    if prepare:
        x_train, x_test = (scale(x, MNIST.mean, MNIST.std) for x in (x_train, x_test))
    return replace(
        data,
        x_train=x_train,
        y_train=data.y_train[rows],
        x_test=x_test,
        train_rows=rows,
        name="MNIST, bent",
    )


def elastic(
    images: np.ndarray,
    num_images: int,
    *,
    seed: int = 0,
    alpha: float = ALPHA,
    sigma: float = SIGMA,
    chunk_size: int = 1000,
) -> Iterator[np.ndarray]:
    """Bent images, a chunk at a time.

    Every pixel is moved by a vector of its own: uniform noise on [-1, 1] in each direction,
    smoothed by a Gaussian of deviation `sigma` pixels and multiplied by `alpha`. The displacement
    in each direction then has a deviation of about ``alpha / (sigma * sqrt(12 * pi))`` pixels, 1.4
    by default. The defaults are the published ones (Simard et al. 2003, section 2). Values between
    pixels are interpolated linearly; outside the image is 0.

    Parameters
    ----------
    images
        uint8, shape (image, height, width).
    num_images
        How many to make; image i bends ``images[i % len(images)]``.
    seed
        With `i` it fixes image i, whatever `num_images` and `chunk_size` are.
    alpha, sigma
        Strength, and smoothness in pixels. `alpha=0` gives the images back.
    chunk_size
        Images in memory at a time.

    Yields
    ------
    numpy.ndarray
        uint8, shape (chunk, height, width).

    Raises
    ------
    ValueError
        For images of another type or shape, or numbers that are not positive.

    References
    ----------
    P. Simard, D. Steinkraus, J. Platt (2003), *Best practices for convolutional neural networks
    applied to visual document analysis*.
    """
    if images.ndim != 3 or images.dtype != np.uint8 or not len(images):
        raise ValueError(
            f"`images` must be uint8 of shape (image, height, width), got "
            f"{images.dtype}{images.shape}"
        )
    if num_images < 1 or chunk_size < 1 or alpha < 0 or sigma <= 0:
        raise ValueError(
            "`num_images`, `chunk_size` and `sigma` must be positive and `alpha` at least 0, got "
            f"{num_images}, {chunk_size}, {sigma}, {alpha}"
        )
    return _chunks(images, num_images, seed, alpha, sigma, chunk_size)


def _chunks(
    images: np.ndarray, num_images: int, seed: int, alpha: float, sigma: float, chunk_size: int
) -> Iterator[np.ndarray]:
    for start in range(0, num_images, chunk_size):
        numbers = np.arange(start, min(start + chunk_size, num_images))
        sources = images[numbers % len(images)].astype(np.float32)
        moves = displacements(numbers, images.shape[1:], seed=seed, alpha=alpha, sigma=sigma)
        grid = np.indices(sources.shape, dtype=np.float32)
        grid[1:] += moves
        bent = ndimage.map_coordinates(sources, grid, order=1, mode="constant")
        yield np.rint(bent).astype(np.uint8)


def displacements(
    numbers: np.ndarray, shape: tuple[int, ...], *, seed: int, alpha: float, sigma: float
) -> np.ndarray:
    """Displacement of each pixel of the images with these numbers, shape (2, image, *shape)."""
    # a stream for each image, so that chunks do not matter
    noise = [
        np.random.default_rng([seed, int(i)]).uniform(-1, 1, (2, *shape)).astype(np.float32)
        for i in numbers
    ]
    # on a torus, so that pixels at the border move as far as the others
    smooth = ndimage.gaussian_filter(np.stack(noise, axis=1), (0, 0, sigma, sigma), mode="wrap")
    return alpha * smooth
