"""Lists of integers out of an .npz that pickles them, with nothing else allowed to run."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ppl_bnn.datasets.files import BROKEN, corrupt

# How NumPy rebuilds an array; taken from an array, for its module has moved between versions.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _OnlyArrays(pickle.Unpickler):
    """An unpickler that can name arrays and nothing else, so that no code of the file's runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, where only lists may be")
        return _ALLOWED[module, name]


def read_pickled_lists(path: Path, name: str) -> np.ndarray:
    """An array of lists of integers, stored in an .npz file as pickled objects.

    ``numpy.load(..., allow_pickle=True)`` would run whatever the file says; this runs nothing.

    Raises
    ------
    ValueError
        If the file is not whole, or its pickle holds anything else than arrays of lists.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            stream = io.BytesIO(archive.read(f"{name}.npy"))
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        if not dtype.hasobject:
            raise corrupt(path, f"{name} has dtype {dtype}, expected lists of integers")
        values = _OnlyArrays(stream).load()
    except (*BROKEN, KeyError, pickle.UnpicklingError) as error:
        raise corrupt(path, f"{name} cannot be read ({error})") from error
    if not isinstance(values, np.ndarray) or values.shape != shape or values.ndim != 1:
        raise corrupt(path, f"{name} is no array of lists")
    for row, value in enumerate(values):
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise corrupt(path, f"entry {row} of {name} is no list of integers")
    return values
