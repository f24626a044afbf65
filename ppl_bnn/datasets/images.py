"""Images as networks take them: scaled as in the papers, from an official layout or an .npz."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ppl_bnn.datasets.dataset import Dataset
from ppl_bnn.datasets.files import check_size, corrupt, data_folder, find, read_npz

CHUNK = 1000
Folder = str | os.PathLike | None
Parts = dict[str, tuple[np.ndarray, np.ndarray]]


class Source(NamedTuple):
    """What is known of a set of images.

    Attributes
    ----------
    title, name, origin
        What it is called, the name of its .npz files, and where the official files come from.
    shape, sizes
        Shape of an image; numbers of training and test images.
    mean, std
        What Izmailov et al. (2021) subtract from pixels in [0, 1], and divide by, per channel.
    marker
        A file that tells that the official layout is there, and folders where it may lie.
    """

    title: str
    name: str
    origin: str
    shape: tuple[int, ...]
    sizes: dict[str, int]
    mean: tuple[float, ...]
    std: float
    marker: tuple[str, ...]
    folders: tuple[str, ...]
    classes: tuple[str, ...]


def load_images(
    source: Source,
    folder: Folder,
    *,
    small: bool,
    prepare: bool,
    check: bool,
    read_official: Callable[[Path, bool], tuple[Parts, Sequence[str]]],
    verify: Callable[[Path, Parts], None],
) -> Dataset:
    """Images of the official files, or of ``images/NAME.npz`` or ``images/NAME_small.npz``."""
    archive = f"images/{source.name}{'_small' if small else ''}.npz"
    classes: Sequence[str] = source.classes
    rows: dict[str, np.ndarray] = {}
    official = None if small else _official(source, folder)
    if official is not None:
        path = official
        parts, classes = read_official(official, check)
    else:
        path = find(
            source.title,
            [archive] if small else [f"{source.folders[0]}/{source.marker[0]}", archive],
            source.origin,
            folder,
            hint=_hint(source, folder, small),
        )
        parts, rows = _read_archive(path, small)
        if check and not small:
            verify(path, parts)
    for part, (x, _) in parts.items():
        if x.dtype != np.uint8 or x.shape[1:] != source.shape:
            raise corrupt(
                path, f"{part} images are {x.dtype}{x.shape[1:]}, not uint8{source.shape}"
            )
        if check and not small:
            check_size(path, len(x), source.sizes[part], f"{part} images")
    scaled = {
        part: scale(x, source.mean, source.std) if prepare else x for part, (x, _) in parts.items()
    }
    return Dataset(
        scaled["train"],
        parts["train"][1].astype(np.int32),
        scaled["test"],
        parts["test"][1].astype(np.int32),
        name=source.title + (" (small)" if small else ""),
        origin=str(path),
        classes=tuple(classes),
        train_rows=rows.get("train"),
        test_rows=rows.get("test"),
    )


def scale(x: np.ndarray, mean: Sequence[float], std: float) -> np.ndarray:
    """Pixels 0..255 of shape (image, height, width[, channel]) as ``(x / 255 - mean) / std``.

    In float32 and with a channel axis, as convolutions take them.
    """
    if x.ndim == 3:
        x = x[..., None]
    result = np.empty(x.shape, np.float32)
    # one chunk at a time: a float64 copy of all images would be eight times their size
    for start in range(0, len(x), CHUNK):
        rows = slice(start, start + CHUNK)
        result[rows] = (x[rows] / 255 - np.asarray(mean)) / std
    return result


def _official(source: Source, folder: Folder) -> Path | None:
    root = data_folder(source.title, source.marker[0], source.origin, folder)
    for place in source.folders:
        if any((root / place / marker).exists() for marker in source.marker):
            return root / place
    return None


def _hint(source: Source, folder: Folder, small: bool) -> str:
    root = data_folder(source.title, source.marker[0], source.origin, folder)
    if not small and (root / f"images/{source.name}_small.npz").exists():
        return f" A part of it is there, images/{source.name}_small.npz; `small=True` reads that."
    return ""


def _read_archive(path: Path, small: bool) -> tuple[Parts, dict[str, np.ndarray]]:
    positions = {"train": "train_index", "test": "test_index"} if small else {}
    arrays = read_npz(path, ["x_train", "y_train", "x_test", "y_test", *positions.values()])
    parts = {part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")}
    for part, (x, y) in parts.items():
        if len(x) != len(y):
            raise corrupt(path, f"there are {len(x)} {part} images, but {len(y)} labels")
    return parts, {part: arrays[name] for part, name in positions.items()}
