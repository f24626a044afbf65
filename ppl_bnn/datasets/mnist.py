"""MNIST and Fashion-MNIST: the official IDX files, or an .npz."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ppl_bnn.datasets.dataset import Dataset
from ppl_bnn.datasets.files import check_digest, corrupt, read_bytes
from ppl_bnn.datasets.images import Folder, Parts, Source, load_images

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTE = 8  # the code of the element type in the header of an IDX file

# MD5 of the decompressed files, so that they do not depend on who compressed them
MD5 = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}

MNIST = Source(
    title="MNIST",
    name="mnist",
    origin="https://ossci-datasets.s3.amazonaws.com/mnist/ (four files, as they are)",
    shape=(28, 28),
    sizes={"train": 60_000, "test": 10_000},
    mean=(0.1307,),
    std=0.3081,
    marker=(FILES["train"][0] + ".gz", FILES["train"][0]),
    folders=("mnist", "MNIST/raw", "."),
    classes=tuple("0123456789"),
)
FASHION_MNIST = MNIST._replace(
    title="Fashion-MNIST",
    name="fashion_mnist",
    origin="https://github.com/zalandoresearch/fashion-mnist (four files of data/fashion)",
    folders=("fashion_mnist", "FashionMNIST/raw", "."),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
)


def mnist(
    folder: Folder = None, *, small: bool = False, prepare: bool = True, check: bool = True
) -> Dataset:
    """MNIST: 60,000 training and 10,000 test images of handwritten digits.

    Parameters
    ----------
    folder
        Holds the four IDX files, compressed or not, in ``mnist``, ``MNIST/raw`` or itself, or
        ``images/mnist.npz``; by default the folder that the environment variable PPL_BNN_DATA
        names.
    small
        Read ``images/mnist_small.npz``, a balanced part, instead.
    prepare
        Scale as Izmailov et al. (2021): pixels / 255, minus 0.1307, divided by 0.3081, in float32,
        with a channel axis. Otherwise pixels are uint8, shape (image, 28, 28).
    check
        Compare sizes and MD5 checksums with the published ones.

    Returns
    -------
    Dataset
        With `x_train` of shape (image, 28, 28, 1).

    Raises
    ------
    FileNotFoundError
        If the files are not there; says where they come from.
    ValueError
        If they are not what was published.
    """
    return _load(MNIST, folder, small, prepare, check)


def fashion_mnist(
    folder: Folder = None, *, small: bool = False, prepare: bool = True, check: bool = True
) -> Dataset:
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothes in ten classes.

    Parameters
    ----------
    folder, small, prepare, check
        As for `mnist`, from ``fashion_mnist`` or ``FashionMNIST/raw``, or
        ``images/fashion_mnist.npz``; it is scaled by MNIST's numbers.

    Returns
    -------
    Dataset
        With `x_train` of shape (image, 28, 28, 1).

    Raises
    ------
    FileNotFoundError
        If the files are not there; says where they come from.
    ValueError
        If they are not what was published.

    References
    ----------
    H. Xiao, K. Rasul, R. Vollgraf (2017), arXiv:1708.07747.
    """
    return _load(FASHION_MNIST, folder, small, prepare, check)


def _load(source: Source, folder: Folder, small: bool, prepare: bool, check: bool) -> Dataset:
    return load_images(
        source,
        folder,
        small=small,
        prepare=prepare,
        check=check,
        read_official=partial(_read_official, source),
        verify=partial(_verify, source),
    )


def _read_official(source: Source, folder: Path, check: bool) -> tuple[Parts, Sequence[str]]:
    parts = {}
    for part, (images, labels) in FILES.items():
        x, y = (_read_idx(folder, name, source, check) for name in (images, labels))
        if len(x) != len(y):
            raise corrupt(folder / images, f"it has {len(x)} images, but there are {len(y)} labels")
        parts[part] = x, y
    return parts, source.classes


def _read_idx(folder: Path, name: str, source: Source, check: bool) -> np.ndarray:
    candidates = [folder / f"{name}.gz", folder / name]
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has neither {name} nor {name}.gz, though others of its kind are there. "
            f"{source.title} comes from {source.origin}."
        )
    content = read_bytes(path)
    num_axes = 3 if "idx3" in name else 1
    header = 4 + 4 * num_axes
    if content[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]) or len(content) < header:
        raise corrupt(path, f"it begins with {content[:4].hex()}, which is no IDX file of bytes")
    shape = struct.unpack(f">{num_axes}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise corrupt(
            path,
            f"found {len(content) - header:,} bytes after the header, expected {shape} = "
            f"{math.prod(shape):,}",
        )
    if check:
        check_digest(path, content, MD5[source.name][name])
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _to_bytes(values: np.ndarray) -> bytes:
    """An array of bytes as an IDX file."""
    start = bytes([0, 0, UNSIGNED_BYTE, values.ndim]) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
    return start + values.astype(np.uint8).tobytes()


def _verify(source: Source, path: Path, parts: Parts) -> None:
    for part, names in FILES.items():
        for name, values in zip(names, parts[part], strict=True):
            check_digest(path, _to_bytes(values), MD5[source.name][name])
