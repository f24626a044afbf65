"""The standard splits of the UCI tables, computed."""

from __future__ import annotations

import numpy as np


def standard_split(num_rows: int, split: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of the split that the UCI literature uses since 2015.

    One stream of permutations with seed 1: the first 90 % of permutation number `split` are the
    training rows (Hernandez-Lobato & Adams 2015; Gal & Ghahramani 2016). It belongs to one order of
    the rows, that of their files; `ppl_bnn.datasets.uci` checks it.

    Parameters
    ----------
    num_rows : int
        Rows of the table.
    split : int
        Number of the split, from 0. The literature uses 20, and 5 for protein.

    Returns
    -------
    tuple of numpy.ndarray
        Positions of the training and of the test rows, in the order of the permutation.

    Raises
    ------
    ValueError
        For a negative split.
    """
    if split < 0:
        raise ValueError(f"`split` must be 0 or more, got {split}")
    rng = np.random.RandomState(1)
    for _ in range(split + 1):
        # a permutation by `choice` is what the published index files were drawn with
        rows = rng.choice(num_rows, num_rows, replace=False)
    end = round(0.9 * num_rows)
    return rows[:end], rows[end:]
