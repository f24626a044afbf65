"""Corruptions: closed forms, the original's steps on single images, seeds, and what is refused."""

import colorsys
import io
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal, assert_equal
from scipy import ndimage

from ppl_bnn import datasets
from ppl_bnn.datasets import corruptions

SEVERITIES = (1, 2, 3, 4, 5)
NOISES = ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")
BLURS = ("gaussian_blur", "defocus_blur", "zoom_blur")
GAUSSIAN = dict(zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True))
SHOT = dict(zip(SEVERITIES, (500, 250, 100, 75, 50), strict=True))
IMPULSE = dict(zip(SEVERITIES, (0.01, 0.02, 0.03, 0.05, 0.07), strict=True))
SPECKLE = dict(zip(SEVERITIES, (0.06, 0.1, 0.12, 0.16, 0.2), strict=True))
BLUR = dict(zip(SEVERITIES, (0.4, 0.6, 0.7, 0.8, 1.0), strict=True))
ZOOM = dict(zip(SEVERITIES, (1.06, 1.11, 1.16, 1.21, 1.26), strict=True))
CONTRAST = dict(zip(SEVERITIES, (0.75, 0.5, 0.4, 0.3, 0.15), strict=True))
BRIGHTNESS = dict(zip(SEVERITIES, (0.05, 0.1, 0.15, 0.2, 0.3), strict=True))
SATURATE = dict(zip(SEVERITIES, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)), strict=True))
QUALITY = dict(zip(SEVERITIES, (80, 65, 58, 50, 40), strict=True))
SMALLER = dict(zip(SEVERITIES, (30, 28, 27, 24, 20), strict=True))  # rows that 32 are reduced to

FLAT = 0.5
NUM = 40 * 32 * 32 * 3


def smooth(num=20, height=32, width=32, channels=3, seed=0):
    """Random images, smooth as photographs are, within [0, 1]."""
    noise = np.random.default_rng(seed).standard_normal((num, height, width, channels))
    return np.clip(0.5 + 2.5 * ndimage.gaussian_filter(noise, (0, 2, 2, 0)), 0, 1)


def flat(value=FLAT):
    return np.full((40, 32, 32, 3), value)


def spot(length=32):
    image = np.zeros((1, length, length, 1))
    image[0, length // 2, length // 2, 0] = 1
    return image


def distance(images, kind, severity):
    return np.abs(datasets.corrupt(images, kind, severity) - images).mean()


def coloured(colours, kind, severity):
    """Colours, shape (colour, 3), changed."""
    return datasets.corrupt(np.asarray(colours)[:, None, None], kind, severity)[:, 0, 0]


class TestNoises:
    """On flat images, within five standard errors."""

    @pytest.mark.parametrize("severity", SEVERITIES)
    @pytest.mark.parametrize(
        ("kind", "deviation"),
        [
            ("gaussian_noise", GAUSSIAN.get),
            ("speckle_noise", lambda severity: FLAT * SPECKLE[severity]),
            ("shot_noise", lambda severity: np.sqrt(FLAT / SHOT[severity])),
        ],
    )
    def test_deviation(self, kind, deviation, severity):
        noise = datasets.corrupt(flat(), kind, severity).astype(float) - FLAT
        expected = deviation(severity)
        assert noise.mean() == pytest.approx(0, abs=5 * expected / np.sqrt(NUM))
        assert noise.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * NUM))
        # each channel by itself
        correlation = np.corrcoef(noise.reshape(-1, 3).T)[np.triu_indices(3, 1)]
        assert np.abs(correlation).max() < 5 / np.sqrt(NUM / 3)

    def test_shot_noise_counts_photons(self):
        photons = SHOT[5] * datasets.corrupt(flat(0.1), "shot_noise", 5)
        assert_allclose(photons, np.rint(photons), atol=1e-5)
        mean = SHOT[5] * 0.1
        assert photons.var() == pytest.approx(mean, rel=5 * np.sqrt((2 + 1 / mean) / NUM))
        assert np.mean(photons == 0) == pytest.approx(np.exp(-mean), abs=5 * np.sqrt(0.007 / NUM))

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_share_of_impulses(self, severity):
        noisy = datasets.corrupt(flat(), "impulse_noise", severity)
        assert_array_equal(np.unique(noisy), [0, FLAT, 1])
        share = IMPULSE[severity] / 2
        for value in (0, 1):
            tolerance = 5 * np.sqrt(share / NUM)
            assert np.mean(noisy == value) == pytest.approx(share, abs=tolerance)

    def test_noises_share_no_draws(self):
        noises = [
            datasets.corrupt(flat(), kind, severity).ravel() - FLAT
            for kind in NOISES
            for severity in (1, 2)
        ]
        correlation = np.corrcoef(noises)[np.triu_indices(8, 1)]
        assert np.abs(correlation).max() < 5 / np.sqrt(NUM)


class TestBlurs:
    @pytest.mark.parametrize("kind", BLURS)
    @pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (35, 57, 1), (1, 2, 3)])
    def test_constant_image_stays(self, kind, shape):
        for severity in SEVERITIES:
            blurred = datasets.corrupt(np.full((2, *shape), 0.3), kind, severity)
            assert_allclose(blurred, 0.3, atol=1e-6)

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_gaussian_spot(self, severity):
        blurred = datasets.corrupt(spot(), "gaussian_blur", severity)[0, ..., 0]
        place = np.arange(32) - 16
        weights = np.exp(-(place**2) / (2 * BLUR[severity] ** 2))
        weights[np.abs(place) > 4 * BLUR[severity] + 0.5] = 0
        weights /= weights.sum()
        assert_allclose(blurred, np.outer(weights, weights), atol=1e-6)
        assert blurred.sum() == pytest.approx(1, abs=1e-5)
        if severity == 5:
            assert blurred.sum(0) @ place**2 == pytest.approx(1, abs=0.01)

    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_defocused_spot(self, severity):
        blurred = datasets.corrupt(spot(), "defocus_blur", severity)[0, ..., 0]
        assert blurred.sum() == pytest.approx(1, abs=1e-5)
        inner = blurred[14:19, 14:19]
        assert_allclose(inner, inner.T, atol=1e-6)
        assert_allclose(inner, inner[::-1, ::-1], atol=1e-6)
        plus = np.abs(np.arange(5) - 2)[:, None] + np.abs(np.arange(5) - 2) <= 1
        if severity == 4:  # a disk of radius 1
            assert_allclose(inner, plus / 5, atol=1e-5)
        elif severity == 5:  # of radius 1.5
            assert_allclose(inner, np.pad(np.full((3, 3), 1 / 9), 1), atol=1e-6)
        else:  # of one pixel, and soft
            softness = {1: 0.4, 2: 0.5, 3: 0.6}[severity]
            weights = np.array([0, np.exp(-1 / (2 * softness**2)), 1, 0, 0])
            weights[3] = weights[1]
            weights /= weights.sum()
            assert_allclose(inner, np.outer(weights, weights), atol=1e-6)

    def test_borders(self):
        """Outside, Gaussian blur sees the last pixel again, and the disk a mirror image."""
        images = np.zeros((1, 8, 8, 1))
        images[:, 0] = 1
        weights = np.exp(-(np.arange(-4, 5) ** 2) / 2)
        expected = weights[4:].sum() / weights.sum()
        blurred = datasets.corrupt(images, "gaussian_blur", 5)
        assert_allclose(blurred[0, 0, :, 0], expected, atol=1e-6)
        assert_allclose(datasets.corrupt(images, "defocus_blur", 5)[0, 0, :, 0], 1 / 3, atol=1e-6)

    @pytest.mark.parametrize("severity", SEVERITIES)
    @pytest.mark.parametrize("length", [28, 32])
    def test_zoomed_one_by_one(self, length, severity):
        """The steps of the original, which has square images."""
        images = smooth(2, length, length)
        factors = np.arange(1, ZOOM[severity], 0.01)
        expected = images.copy()
        for image, result in zip(images, expected, strict=True):
            for factor in factors:
                middle = int(np.ceil(length / factor))
                rows = slice((length - middle) // 2, (length - middle) // 2 + middle)
                larger = ndimage.zoom(image[rows, rows], (factor, factor, 1), order=1)
                start = (len(larger) - length) // 2
                result += larger[start : start + length, start : start + length]
        expected /= len(factors) + 1
        assert_allclose(datasets.corrupt(images, "zoom_blur", severity), expected, atol=2e-6)

    def test_zoom_of_a_ramp(self):
        """It stays a ramp about the same middle, within a pixel, and its slope falls."""
        ramp = np.broadcast_to(np.arange(100)[:, None, None] / 99, (1, 100, 40, 1))
        slopes = []
        for severity in SEVERITIES:
            zoomed = datasets.corrupt(ramp, "zoom_blur", severity)[0, ..., 0]
            assert_allclose(zoomed, zoomed[:, :1] * np.ones(40), atol=1e-6)
            steps = np.diff(zoomed[:, 0]) * 99
            assert steps.std() < 1e-4  # a ramp again
            assert zoomed.mean() == pytest.approx(0.5, abs=1 / 99)
            slopes.append(steps.mean())
        # each slope is about 1 / factor, and the image itself counts twice
        factors = [1 + np.arange(last + 1) / 100 for last in (6, 11, 15, 20, 25)]
        expected = [np.append(1 / factor, 1).mean() for factor in factors]
        assert_allclose(slopes, expected, rtol=3e-3)

    def test_zoom_knows_no_rows_from_columns(self):
        images = smooth(2, 24, 40)
        turned = datasets.corrupt(images.transpose(0, 2, 1, 3), "zoom_blur", 4)
        assert_allclose(
            turned.transpose(0, 2, 1, 3), datasets.corrupt(images, "zoom_blur", 4), atol=1e-6
        )


class TestColours:
    @pytest.mark.parametrize("severity", SEVERITIES)
    def test_contrast_about_each_channels_mean(self, severity):
        images = smooth(3)
        mean = images.mean((1, 2), keepdims=True)
        expected = mean + CONTRAST[severity] * (images - mean)
        assert_allclose(datasets.corrupt(images, "contrast", severity), expected, atol=1e-6)

    @pytest.mark.parametrize("severity", SEVERITIES)
    @pytest.mark.parametrize("kind", ["brightness", "saturate"])
    def test_as_colorsys(self, kind, severity):
        greys = np.outer([0, 0.3, 1, 1e-30], np.ones(3))
        bright = np.array([(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0.5, 0), (0, 0.2, 0.2)])
        colours = np.concatenate([greys, bright, np.random.default_rng(0).random((200, 3))])
        expected = []
        for colour in colours:
            hue, saturation, value = colorsys.rgb_to_hsv(*colour)
            if kind == "brightness":
                value = min(value + BRIGHTNESS[severity], 1)
            else:
                factor, added = SATURATE[severity]
                saturation = min(saturation * factor + added, 1)
            expected.append(colorsys.hsv_to_rgb(hue, saturation, value))
        assert_allclose(coloured(colours, kind, severity), expected, atol=1e-6)

    def test_known_colours(self):
        orange, grey = (1, 0.5, 0), (0.5, 0.5, 0.5)
        assert_allclose(coloured([orange], "saturate", 1), [(1, 0.85, 0.7)], atol=1e-6)
        assert_allclose(coloured([grey], "saturate", 3), [grey], atol=1e-6)
        assert_allclose(coloured([grey], "saturate", 5), [(0.5, 0.4, 0.4)], atol=1e-6)
        assert_allclose(coloured([(0.4, 0.2, 0)], "brightness", 4), [(0.6, 0.3, 0)], atol=1e-6)

    def test_brightness_of_greys(self):
        images = smooth(2, channels=1)
        expected = np.minimum(images + 0.3, 1)
        assert_allclose(datasets.corrupt(images, "brightness", 5), expected, atol=1e-6)


class TestPictures:
    @pytest.mark.parametrize("severity", SEVERITIES)
    @pytest.mark.parametrize("channels", [1, 3])
    def test_jpeg(self, channels, severity):
        from PIL import Image

        pixels = np.rint(255 * smooth(3, channels=channels)).astype(np.uint8)
        for image, result in zip(
            pixels, datasets.corrupt(pixels / 255, "jpeg_compression", severity), strict=True
        ):
            stream = io.BytesIO()
            picture = Image.fromarray(image if channels == 3 else image[..., 0])
            picture.save(stream, "JPEG", quality=QUALITY[severity])
            assert_allclose(255 * result.squeeze(), np.asarray(Image.open(stream)), atol=1e-4)

    def test_jpeg_error_grows(self):
        errors = [distance(smooth(), "jpeg_compression", severity) for severity in SEVERITIES]
        assert (np.diff(errors) > 0).all()

    @pytest.mark.parametrize("severity", SEVERITIES)
    @pytest.mark.parametrize("channels", [1, 3])
    def test_blocks(self, channels, severity):
        """Means of the pixels whose centres lie in a larger pixel, and those shown again."""
        images = smooth(3, channels=channels)
        pixelated = datasets.corrupt(images, "pixelate", severity)
        fewer = SMALLER[severity]
        number = ((np.arange(32) + 0.5) * fewer / 32).astype(int)  # of the larger pixel
        means = number == np.arange(fewer)[:, None]
        back = (means / means.sum(1, keepdims=True))[number]
        expected = np.einsum("ij,njkc,lk->nilc", back, images, back)
        assert_allclose(pixelated, expected, atol=2 / 255)
        for axis in (1, 2):
            repeats = np.diff(pixelated, axis=axis) == 0
            same = repeats.all(axis=tuple({0, 1, 2, 3} - {axis}))
            assert_array_equal(same, np.diff(number) == 0)
            assert same.sum() == 32 - fewer

    def test_without_pillow(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        for kind in ("jpeg_compression", "pixelate"):
            with pytest.raises(ImportError, match=f"'{kind}'.*needs? Pillow: .*pip install pillow"):
                datasets.corrupt(smooth(1), kind, 1)
        assert datasets.corrupt(smooth(1), "contrast", 1).shape == (1, 32, 32, 3)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", datasets.GREY_CORRUPTIONS)
def test_severity_5_is_farther_than_1(kind, channels):
    images = smooth(10, 28, 28, channels)
    assert distance(images, kind, 5) > 1.3 * distance(images, kind, 1)


def test_saturate_goes_down_and_up():
    colours = np.random.default_rng(0).uniform(0.2, 0.8, (500, 3))

    def saturation(colours):
        return np.mean(1 - colours.min(-1) / colours.max(-1))

    found = [saturation(coloured(colours, "saturate", severity)) for severity in SEVERITIES]
    assert found[1] < found[0] < saturation(colours) < found[2] < found[3] < found[4]
    assert found[0] == pytest.approx(0.3 * saturation(colours), rel=1e-5)


@pytest.mark.parametrize("kind", datasets.CORRUPTIONS)
class TestEachKind:
    @pytest.mark.parametrize("severity", [1, 5])
    def test_type_range_and_input(self, kind, severity):
        images = smooth(4, 20, 24)
        assert images.min() == 0 and images.max() == 1
        images.flags.writeable = False
        changed = datasets.corrupt(images, kind, severity)
        assert changed.shape == images.shape and changed.dtype == np.float32
        assert changed.min() >= 0 and changed.max() <= 1
        assert not np.shares_memory(changed, images) and not np.array_equal(changed, images)
        as_float32 = datasets.corrupt(images.astype(np.float32), kind, severity)
        assert_array_equal(as_float32, changed)
        assert_array_equal(datasets.corrupt(jnp.asarray(images), kind, severity), changed)

    def test_seed(self, kind):
        images = smooth(4)
        np.random.random()  # the global stream is nowhere near a start
        state = np.random.get_state()
        first = datasets.corrupt(images, kind, 3)
        assert_equal(np.random.get_state(), state)
        assert_array_equal(datasets.corrupt(images, kind, 3, seed=0), first)
        other = datasets.corrupt(images, kind, 3, seed=1)
        assert np.array_equal(other, first) == (kind not in NOISES)

    def test_chunks_and_images_that_follow_do_not_matter(self, kind, monkeypatch):
        images = smooth(7)
        whole = datasets.corrupt(images, kind, 3)
        monkeypatch.setattr(corruptions, "CHUNK", 2 * 32 * 32 * 3 + 5)
        assert_allclose(datasets.corrupt(images, kind, 3), whole, atol=1e-6)
        assert_allclose(datasets.corrupt(images[:3], kind, 3), whole[:3], atol=1e-6)


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (lambda x: np.rint(255 * x).astype(np.uint8), r"dtype uint8; .*`images / 255`"),
            (lambda x: x > 0.5, r"must be floats in \[0, 1\], got dtype bool"),
            (lambda x: 255 * x, r"from 0.0 to 255.0; divide pixels from 0 to 255 by 255"),
            (lambda x: (x - 0.5) / 0.2, r"from -2.5 to 2.5; .*before they are standardised"),
            (lambda x: np.where(x == 1, np.inf, x), "from 0.0 to inf"),
            (lambda x: x[0], r"got shape \(32, 32, 3\); add an axis: `images\[None\]`"),
            (lambda x: x[..., 0], r"\(2, 32, 32\); add an axis: `images\[..., None\]`"),
            (lambda x: x.transpose(0, 3, 1, 2), r"put channels last: `images.transpose\(0, 2, 3"),
            (lambda x: x[..., :2], r"with 1 or 3 channels, got shape \(2, 32, 32, 2\)"),
            (lambda x: x.reshape(2, -1), r"\(image, height, width, channel\).*\(2, 3072\)"),
            (lambda x: x[:0], r"`images` has shape \(0, 32, 32, 3\): there are no pixels"),
            (lambda x: x[:, :0], r"`images` has shape \(2, 0, 32, 3\): there are no pixels"),
        ],
    )
    def test_images(self, change, expected):
        with pytest.raises(ValueError, match=f"`images` .*{expected.removeprefix('`images` ')}"):
            datasets.corrupt(change(smooth(2)), "contrast", 1)

    def test_nan(self):
        images = smooth(2)
        images[1, 4, 5, 2] = np.nan
        with pytest.raises(ValueError, match=r"`images` has .* NaN, the first at .*\(1, 4, 5, 2\)"):
            datasets.corrupt(images, "contrast", 1)

    def test_kind(self, as_users_run):
        with pytest.raises(ValueError, match=r"`kind`.*'pixelate'.*did you mean 'gaussian_noise'"):
            datasets.corrupt(smooth(1), "gausian_noise", 1)
        with pytest.raises(ValueError, match=r"`kind` must be one of .*got None"):
            datasets.corrupt(smooth(1), None, 1)

    def test_grey_images_have_no_saturation(self):
        with pytest.raises(ValueError, match=r"'saturate', which changes nothing.*'brightness'"):
            datasets.corrupt(smooth(1, channels=1), "saturate", 1)
        assert {*datasets.CORRUPTIONS} - {*datasets.GREY_CORRUPTIONS} == {"saturate"}

    @pytest.mark.parametrize("severity", [0, 6, -1, 2.0, True, "3", None])
    def test_severity(self, severity, as_users_run):
        with pytest.raises(ValueError, match=r"`severity` must be an integer from 1 .*, got"):
            datasets.corrupt(smooth(1), "contrast", severity)
        assert datasets.corrupt(smooth(1), "contrast", np.int64(5)).shape == (1, 32, 32, 3)

    @pytest.mark.parametrize("seed", [-1, 0.5, None])
    def test_seed(self, seed, as_users_run):
        with pytest.raises(ValueError, match="`seed` must be an integer of at least 0"):
            datasets.corrupt(smooth(1), "contrast", 1, seed=seed)
