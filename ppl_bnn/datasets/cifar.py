"""CIFAR-10 and CIFAR-100: the official binary version, or an .npz."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ppl_bnn.datasets.dataset import Dataset
from ppl_bnn.datasets.files import check_digest, check_size, corrupt, read_bytes
from ppl_bnn.datasets.images import Folder, Parts, Source, load_images

PIXELS = 3 * 32 * 32
RECORDS_10 = 10_000

# MD5 of the files inside cifar-10-binary.tar.gz and cifar-100-binary.tar.gz
MD5_10 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
MD5_100 = {
    "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "test.bin": "4499cfba6c016c1be1438163640a0898",
}

CIFAR10 = Source(
    title="CIFAR-10",
    name="cifar10",
    origin="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz (unpacked)",
    shape=(32, 32, 3),
    sizes={"train": 50_000, "test": 10_000},
    mean=(0.49, 0.48, 0.44),
    std=0.2,
    marker=("data_batch_1.bin",),
    folders=("cifar-10-batches-bin", "."),
    classes=tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
)
CIFAR100 = CIFAR10._replace(
    title="CIFAR-100",
    name="cifar100",
    origin="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz (unpacked)",
    marker=("train.bin",),
    folders=("cifar-100-binary", "."),
    classes=tuple(str(k) for k in range(100)),
)


def cifar10(
    folder: Folder = None, *, small: bool = False, prepare: bool = True, check: bool = True
) -> Dataset:
    """CIFAR-10: 50,000 training and 10,000 test images in ten classes, in the official order.

    Parameters
    ----------
    folder
        Holds ``cifar-10-batches-bin`` (the binary version, unpacked) or ``images/cifar10.npz``; by
        default the folder that the environment variable PPL_BNN_DATA names.
    small
        Read ``images/cifar10_small.npz``, a balanced part, instead.
    prepare
        Scale as Izmailov et al. (2021): pixels / 255, minus (0.49, 0.48, 0.44), divided by 0.2, in
        float32. Otherwise pixels are uint8.
    check
        Compare sizes and MD5 checksums with the published ones.

    Returns
    -------
    Dataset
        With `x_train` of shape (image, 32, 32, 3). The paper takes the first 40,960 training images
        of another, shuffled order (that of TensorFlow Datasets).

    Raises
    ------
    FileNotFoundError
        If the files are not there; says where they come from.
    ValueError
        If they are not what was published.

    References
    ----------
    A. Krizhevsky (2009), *Learning multiple layers of features from tiny images*.
    """
    return load_images(
        CIFAR10,
        folder,
        small=small,
        prepare=prepare,
        check=check,
        read_official=_read_cifar10,
        verify=_verify_cifar10,
    )


def cifar100(
    folder: Folder = None,
    *,
    coarse: bool = False,
    small: bool = False,
    prepare: bool = True,
    check: bool = True,
) -> Dataset:
    """CIFAR-100: 50,000 training and 10,000 test images in 100 classes, in the official order.

    Parameters
    ----------
    folder, small, prepare, check
        As for `cifar10`, from ``cifar-100-binary`` or ``images/cifar100.npz``.
    coarse
        Labels are the 20 superclasses; only the official files have them.

    Returns
    -------
    Dataset
        With `x_train` of shape (image, 32, 32, 3).

    Raises
    ------
    FileNotFoundError
        If the files are not there; says where they come from.
    ValueError
        If they are not what was published.
    """
    return load_images(
        CIFAR100,
        folder,
        small=small,
        prepare=prepare,
        check=check,
        read_official=partial(_read_cifar100, coarse),
        verify=partial(_verify_cifar100, coarse),
    )


def _read_cifar10(folder: Path, check: bool) -> tuple[Parts, Sequence[str]]:
    batches = [_records(folder / name, 1, MD5_10[name] if check else None) for name in MD5_10]
    images, labels = zip(*batches, strict=True)
    train = np.concatenate(images[:-1]), np.concatenate([y[:, 0] for y in labels[:-1]])
    return {"train": train, "test": (images[-1], labels[-1][:, 0])}, _class_names(
        folder / "batches.meta.txt", CIFAR10.classes
    )


def _read_cifar100(coarse: bool, folder: Path, check: bool) -> tuple[Parts, Sequence[str]]:
    parts = {}
    for part in ("train", "test"):
        name = f"{part}.bin"
        images, labels = _records(folder / name, 2, MD5_100[name] if check else None)
        parts[part] = images, labels[:, 0 if coarse else 1]  # superclass first, then class
    kind = "coarse" if coarse else "fine"
    default = tuple(str(k) for k in range(20)) if coarse else CIFAR100.classes
    return parts, _class_names(folder / f"{kind}_label_names.txt", default)


def _records(path: Path, num_labels: int, md5: str | None) -> tuple[np.ndarray, np.ndarray]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing, though others of its kind are there; unpack the archive again"
        )
    content = read_bytes(path)
    size = num_labels + PIXELS
    if md5 is not None:
        per_file = RECORDS_10 if num_labels == 1 else CIFAR100.sizes[path.stem]
        check_size(path, len(content), per_file * size, "bytes")
        check_digest(path, content, md5)
    if not content or len(content) % size:
        raise corrupt(path, f"{len(content):,} bytes are no whole number of {size:,}-byte records")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    images = records[:, num_labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records[:, :num_labels]


def _to_bytes(x: np.ndarray, *labels: np.ndarray) -> bytes:
    """Images and labels as records of the official files."""
    pixels = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return np.column_stack([*labels, pixels]).astype(np.uint8).tobytes()


def _verify_cifar10(path: Path, parts: Parts) -> None:
    (x, y), test = parts["train"], parts["test"]
    check_size(path, len(x), CIFAR10.sizes["train"], "training images")
    for i, name in enumerate(list(MD5_10)[:-1]):
        rows = slice(i * RECORDS_10, (i + 1) * RECORDS_10)
        check_digest(path, _to_bytes(x[rows], y[rows]), MD5_10[name])
    check_digest(path, _to_bytes(*test), MD5_10["test_batch.bin"])


def _verify_cifar100(coarse: bool, path: Path, parts: Parts) -> None:
    if coarse:
        raise ValueError(f"{path} has no superclasses; the official files (`cifar-100-binary`) do")
    # the records of the official files hold superclasses too, so their checksums do not apply
    for part, (x, _) in parts.items():
        check_size(path, len(x), CIFAR100.sizes[part], f"{part} images")


def _class_names(path: Path, default: Sequence[str]) -> Sequence[str]:
    found = path.read_text().split() if path.exists() else []
    return found if len(found) == len(default) else default
