"""Local files: where they are, whether they are whole, and what to say when they are not."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

VARIABLE = "PPL_BNN_DATA"
BROKEN = (
    EOFError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)


def data_folder(what: str, needed: str, origin: str, folder: str | os.PathLike | None) -> Path:
    """The folder that was passed, or that the environment variable PPL_BNN_DATA names.

    Raises
    ------
    FileNotFoundError
        Says what is needed, where it comes from, and how to point to it.
    """
    given = folder if folder is not None else os.environ.get(VARIABLE)
    advice = f"{what} needs {needed} from {origin}"
    if given is None:
        raise FileNotFoundError(
            f"{advice}. Pass the folder that holds it as `folder=`, or set the environment "
            f"variable {VARIABLE}."
        )
    path = Path(given).expanduser()
    if not path.is_dir():
        named = "`folder`" if folder is not None else f"the environment variable {VARIABLE}"
        raise FileNotFoundError(f"there is no folder {path}, which {named} names. {advice}.")
    return path


def find(
    what: str,
    candidates: Sequence[str],
    origin: str,
    folder: str | os.PathLike | None,
    *,
    hint: str = "",
) -> Path:
    """The first of the candidate paths that exists in the data folder.

    Raises
    ------
    FileNotFoundError
        Says which file is needed, where it comes from, and how to point to it.
    """
    needed = candidates[0] + (f" (or {', '.join(candidates[1:])})" if candidates[1:] else "")
    root = data_folder(what, needed, origin, folder)
    for candidate in candidates:
        if (root / candidate).exists():
            return root / candidate
    raise FileNotFoundError(
        f"{what} needs {needed}, and there is none in {root}. It comes from {origin}. Pass the "
        f"folder that holds it as `folder=`, or set the environment variable {VARIABLE}.{hint}"
    )


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz.

    Raises
    ------
    ValueError
        If it cannot be decompressed.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as stream:
            return stream.read()
    except (EOFError, OSError, zlib.error) as error:
        raise corrupt(path, f"it does not decompress ({error})") from error


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Named arrays of an .npz file; objects, which could run code, are not read.

    Raises
    ------
    ValueError
        If the file is no whole .npz file, or lacks one of the arrays.
    """
    try:
        # opened here, for NumPy leaves a file open that is no archive
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in names if name in stored}
    except BROKEN as error:
        raise corrupt(path, f"it is no whole .npz file ({error})") from error
    if missing := [name for name in names if name not in arrays]:
        raise corrupt(path, f"it has no array named {', '.join(missing)}")
    return arrays


def check_size(path: Path, found: int, expected: int, unit: str) -> None:
    """Refuse a file that holds more or less than it must."""
    if found != expected:
        raise corrupt(path, f"found {found:,} {unit}, expected {expected:,}")


def check_digest(path: Path, content: bytes, expected: str) -> None:
    """Refuse content whose MD5 (32 digits) or SHA-256 (64 digits) is not the published one."""
    kind = {32: "md5", 64: "sha256"}[len(expected)]
    found = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if found != expected:
        label = {"md5": "MD5", "sha256": "SHA-256"}[kind]
        raise corrupt(path, f"the {label} of its content is {found}, expected {expected}")


def corrupt(path: Path, why: str) -> ValueError:
    """The error for a file that is not what it should be."""
    return ValueError(
        f"{path} is corrupt or another version: {why}. Fetch it again; to read a variant of your "
        "own, pass `check=False`, which leaves sizes and checksums unchecked."
    )
