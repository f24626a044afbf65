"""Images made worse by noise, blur, colour and compression, in five steps, as in CIFAR-10-C."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import ndimage, sparse

from ppl_bnn.arguments import check_choice, check_integer

CHUNK = 2**22  # numbers in memory at a time


def corrupt(images: ArrayLike, kind: str, severity: int, *, seed: int = 0) -> np.ndarray:
    """Corrupted copies of images, in the style of CIFAR-10-C.

    The constants and steps are those of the code that made CIFAR-10-C (Hendrycks & Dietterich
    2019), for images of any height and width; lengths are in pixels. Results are not the published
    files: the noise is drawn anew, and values are not rounded to 8 bits (only
    `jpeg_compression` and `pixelate` work on 8 bits). So call them "CIFAR-10-C-style".

    Of the paper's kinds motion blur, snow, frost and spatter are left out, which need photographs,
    ImageMagick or OpenCV, and so are glass blur, fog and elastic transform.

    Parameters
    ----------
    images
        Floats in [0, 1], shape (image, height, width, channel), with one channel (grey) or three
        (red, green, blue): pixels divided by 255, and not yet standardised.
    kind
        One of `CORRUPTIONS` or, for grey images, of `GREY_CORRUPTIONS`, which lacks "saturate".

        - "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise" change each channel of
          each pixel by itself: normal noise, Poisson counts, black or white, noise in proportion.
        - "gaussian_blur", "defocus_blur" (a disk), "zoom_blur" (a mean of enlarged images).
        - "contrast" moves values towards the mean of the image's channel. "brightness" adds to the
          value of HSV, which is the grey value itself in grey images. "saturate" changes the
          saturation of HSV, downwards for severities 1 and 2, upwards for 3 to 5. At 4 and 5 it
          makes grey pixels reddish, as the original does: their hue of 0 is red.
        - "jpeg_compression", "pixelate" (fewer pixels, and back). Both need Pillow.
    severity
        From 1 (mild) to 5 (strong).
    seed
        Fixes the noise, together with `kind` and `severity`. The first images come out the same
        whatever images follow. Kinds without noise do not depend on it.

    Returns
    -------
    numpy.ndarray
        float32 in [0, 1], of the shape of `images`.

    Raises
    ------
    ImportError
        Without Pillow, for the kinds that need it.
    ValueError
        For an unknown kind or severity, or images of another shape, type or range.

    References
    ----------
    D. Hendrycks, T. Dietterich (2019), *Benchmarking neural network robustness to common
    corruptions and perturbations*.

    Examples
    --------
    >>> data = datasets.cifar10(prepare=False)  # doctest: +SKIP
    >>> noisy = datasets.corrupt(data.x_test / 255, "shot_noise", 3)  # doctest: +SKIP
    >>> x = (noisy - np.array([0.49, 0.48, 0.44])) / 0.2  # as `cifar10` does  # doctest: +SKIP
    """
    check_choice("kind", kind, CORRUPTIONS)
    is_integer = isinstance(severity, int | np.integer) and not isinstance(severity, bool)
    if not is_integer or not 1 <= severity <= 5:
        raise ValueError(
            f"`severity` must be an integer from 1 (mild) to 5 (strong), got {severity!r}"
        )
    check_integer("seed", seed, 0)
    images = _checked(images)
    if images.shape[-1] == 1 and kind not in GREY_CORRUPTIONS:
        raise ValueError(
            f"`kind` is {kind!r}, which changes nothing in grey images, and `images` has one "
            f"channel; use one of {list(GREY_CORRUPTIONS)} (`GREY_CORRUPTIONS`)"
        )
    # a stream for each kind and severity, so that errors under different noises are independent
    rng = np.random.default_rng([int(seed), int(severity), *kind.encode()])
    change, levels = _KINDS[kind]
    result = np.empty(images.shape, np.float32)
    size = max(1, CHUNK // math.prod(images.shape[1:]))
    for start in range(0, len(images), size):
        rows = slice(start, start + size)
        changed = change(images[rows].astype(np.float32), levels[severity - 1], rng)
        np.clip(changed, 0, 1, out=result[rows])
    return result


def _checked(images: ArrayLike) -> np.ndarray:
    images = np.asarray(images)
    if images.dtype.kind != "f":
        raise ValueError(
            f"`images` must be floats in [0, 1], got dtype {images.dtype}; divide pixels from 0 to "
            "255 by 255: `images / 255`"
        )
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        advice = ""
        if images.ndim == 3:
            new_axis = "None" if images.shape[-1] in (1, 3) else "..., None"
            advice = f"; add an axis: `images[{new_axis}]`"
        elif images.ndim == 4 and images.shape[1] in (1, 3):
            advice = "; put channels last: `images.transpose(0, 2, 3, 1)`"
        raise ValueError(
            "`images` must have shape (image, height, width, channel), with 1 or 3 channels, got "
            f"shape {images.shape}{advice}"
        )
    if not images.size:
        raise ValueError(f"`images` has shape {images.shape}: there are no pixels")
    least, largest = images.min(), images.max()
    if np.isnan(least):
        first = tuple(int(i) for i in np.argwhere(np.isnan(images))[0])
        raise ValueError(
            f"`images` has values that are NaN, the first at index {first}; remove those images"
        )
    if least < 0 or largest > 1:
        raise ValueError(
            f"`images` must be in [0, 1], got values from {least!s} to {largest!s}; divide pixels "
            "from 0 to 255 by 255, and corrupt images before they are standardised (the loaders' "
            "`prepare=False` leaves that out)"
        )
    return images


# Each takes images, the level of the severity, and the stream of noise.


def _gaussian_noise(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return x + deviation * rng.standard_normal(x.shape, np.float32)


def _shot_noise(x: np.ndarray, photons: int, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(photons * x.astype(float)) / photons


def _impulse_noise(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    uniform = rng.random(x.shape)
    return np.where(uniform < share, uniform < share / 2, x)


def _speckle_noise(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return x + x * (deviation * rng.standard_normal(x.shape, np.float32))


def _gaussian_blur(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return ndimage.gaussian_filter(x, deviation, axes=(1, 2), mode="nearest")


def _defocus_blur(x: np.ndarray, level: tuple, rng: np.random.Generator) -> np.ndarray:
    radius, softness = level
    distance = np.hypot(*np.mgrid[-2:3, -2:3])  # pixels of the largest disk, and a border of one
    disk = (distance <= radius) / np.sum(distance <= radius)
    soft = np.where(distance < 2, np.exp(-(distance**2) / (2 * softness**2)), 0)
    kernel = ndimage.convolve(disk, soft / soft.sum(), mode="constant")
    return ndimage.correlate(x, kernel[None, :, :, None], mode="mirror")


def _zoom_blur(x: np.ndarray, stop: float, rng: np.random.Generator) -> np.ndarray:
    num, height, width, channels = x.shape
    # To the last bit as in the original: rounding decides where this ends (1.06, 1.11, 1.15, 1.2,
    # 1.25 for the five levels) and whether 26 pixels enlarged by 1.25 are 32 or 33.
    zooms = np.arange(1, stop, 0.01)
    # one sparse matrix from pixels to pixels; the image itself counts twice, as in the original
    total = sparse.eye_array(height * width, format="csr")
    for zoom in zooms:
        rows = sparse.csr_array(_zoomed(height, zoom))
        total = total + sparse.kron(rows, _zoomed(width, zoom), format="csr")
    mean = (total / (len(zooms) + 1)).astype(np.float32)
    pixels = x.transpose(1, 2, 0, 3).reshape(height * width, -1)
    return (mean @ pixels).reshape(height, width, num, channels).transpose(2, 0, 1, 3)


def _zoomed(length: int, zoom: float) -> np.ndarray:
    """Matrix that enlarges the middle of a line of pixels, linearly, to the line's length."""
    middle = math.ceil(length / zoom)
    start = (length - middle) // 2
    # mode: where rounding puts the last point beyond the end, zeros would come in
    points = np.eye(length)[start : start + middle]
    larger = ndimage.zoom(points, (zoom, 1), order=1, mode="nearest")
    start = (len(larger) - length) // 2
    return larger[start : start + length]


def _contrast(x: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    mean = x.mean(axis=(1, 2), keepdims=True, dtype=float)
    return (x - mean) * factor + mean


# With hue and saturation kept, RGB is proportional to the value of HSV, the largest channel; with
# hue and value kept, what channels lack to it is proportional to the saturation.


def _brightness(x: np.ndarray, added: float, rng: np.random.Generator) -> np.ndarray:
    value = x.max(axis=-1, keepdims=True)
    share = np.divide(x, value, out=np.ones_like(x), where=value > 0)  # black is a grey
    return np.minimum(value + added, 1) * share


def _saturate(x: np.ndarray, level: tuple, rng: np.random.Generator) -> np.ndarray:
    factor, added = level
    value = x.max(axis=-1, keepdims=True)
    range_ = value - x.min(axis=-1, keepdims=True)
    saturation = np.divide(range_, value, out=np.zeros_like(value), where=value > 0)
    lack = np.zeros_like(x)
    lack[..., 1:] = 1  # red, by convention the hue of greys
    np.divide(value - x, range_, out=lack, where=range_ > 0)
    return value * (1 - np.clip(saturation * factor + added, 0, 1) * lack)


def _jpeg_compression(x: np.ndarray, quality: int, rng: np.random.Generator) -> np.ndarray:
    pillow = _pillow()

    def compress(picture: Any) -> Any:
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality)
        return pillow.open(stream)

    return _by_picture(x, compress)


def _pixelate(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    box = _pillow().Resampling.BOX

    def shrink(picture: Any) -> Any:
        fewer = [max(1, int(length * share)) for length in picture.size]
        return picture.resize(fewer, box).resize(picture.size, box)

    return _by_picture(x, shrink)


def _by_picture(x: np.ndarray, change: Callable[[Any], Any]) -> np.ndarray:
    pixels = np.rint(255 * x).astype(np.uint8)
    if x.shape[-1] == 1:
        pixels = pixels[..., 0]
    pictures = map(_pillow().fromarray, pixels)
    changed = [np.asarray(change(picture)) for picture in pictures]
    return np.stack(changed).reshape(x.shape) / np.float32(255)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "'jpeg_compression' and 'pixelate' need Pillow: python -m pip install pillow"
        ) from error
    return Image


# What makes it, and its level at severities 1 to 5, as in the code of CIFAR-10-C (make_cifar_c.py).
_KINDS: dict[str, tuple[Callable[[np.ndarray, Any, np.random.Generator], np.ndarray], tuple]] = {
    # deviation; photons that make up the value 1; share of values; deviation relative to the value
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": (_speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    # deviation; radius and softness; largest enlargement, or 0.01 more; lengths in pixels
    "gaussian_blur": (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "zoom_blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    # factor; what is added to the value of HSV; factor of its saturation, and what is added
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "saturate": (_saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    # quality; share of the rows and of the columns
    "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40)),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
}
CORRUPTIONS = tuple(_KINDS)
GREY_CORRUPTIONS = tuple(kind for kind in CORRUPTIONS if kind != "saturate")
