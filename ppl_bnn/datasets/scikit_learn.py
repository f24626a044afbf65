"""Tables through scikit-learn: those that it ships, and OpenML's."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_bnn.datasets.dataset import Dataset, names
from ppl_bnn.datasets.labels import encode_labels
from ppl_bnn.datasets.splits import standard_split

SHIPPED = ("diabetes", "breast_cancer", "digits", "wine", "iris")


def scikit_learn(name: str, *, seed: int = 0, test_size: float = 0.2) -> Dataset:
    """A table that scikit-learn ships, shuffled and split.

    Parameters
    ----------
    name
        "diabetes" (regression), "breast_cancer", "digits", "wine" or "iris" (classification).
    seed
        Of the split. Classes have the same shares in both parts.
    test_size
        Share of the test rows.

    Returns
    -------
    Dataset
        In the units of the source (scikit-learn scales the features of diabetes).

    Raises
    ------
    ImportError
        Without scikit-learn.
    ValueError
        For an unknown name.
    """
    if name not in SHIPPED:
        raise ValueError(f"`name` must be one of {', '.join(SHIPPED)}, got {name!r}")
    sklearn = _scikit_learn()
    bunch = getattr(sklearn, f"load_{name}")()
    from sklearn.model_selection import train_test_split

    is_classes = "target_names" in bunch
    train, test = train_test_split(
        np.arange(len(bunch.target)),
        test_size=test_size,
        random_state=seed,
        stratify=bunch.target if is_classes else None,
    )
    classes = names(bunch.target_names) if is_classes else ()
    y = bunch.target.astype(np.int32 if is_classes else float)
    return Dataset(
        bunch.data[train],
        y[train],
        bunch.data[test],
        y[test],
        name=name,
        origin="scikit-learn",
        features=names(bunch.feature_names),
        classes=classes,
        train_rows=train,
        test_rows=test,
    )


def openml(
    name: str,
    *,
    version: int,
    split: int = 0,
    target: str | None = None,
    cache: str | None = None,
) -> Dataset:
    """A table of numbers from openml.org, through scikit-learn's client, which caches it.

    Parameters
    ----------
    name, version
        As on openml.org. Names are not unique there, and versions differ in content.
    split
        Number of the split, by the rule of `standard_split`. OpenML's copies of UCI tables need
        not have the rows in the order of the literature's splits: for those use `uci`.
    target
        The column to predict; by default the one that OpenML names.
    cache
        Folder for what was fetched; by default scikit-learn's.

    Returns
    -------
    Dataset
        Classification if the target's column holds categories, otherwise regression.

    Raises
    ------
    ImportError
        Without scikit-learn.
    ConnectionError
        If openml.org cannot be reached.
    ValueError
        If there is no such table, or it has columns of categories or missing values.
    """
    sklearn = _scikit_learn()
    what = f"version {version} of {name!r}"
    try:
        bunch = sklearn.fetch_openml(
            name,
            version=version,
            target_column="default-target" if target is None else target,
            data_home=cache,
            as_frame=False,
            parser="liac-arff",
        )
    except OSError as error:  # URLError is one
        raise ConnectionError(
            f"cannot fetch {what} from openml.org ({error}). Go online once (the table is cached "
            "after that), or read it from a folder: `ppl_bnn.datasets.uci`."
        ) from error
    categories = getattr(bunch, "categories", None) or {}
    text = [column for column in bunch.feature_names if column in categories]
    x = bunch.data.toarray() if hasattr(bunch.data, "toarray") else np.asarray(bunch.data)
    if text or x.dtype.kind not in "biuf":
        raise ValueError(
            f"{what} has columns of categories ({', '.join(text) or 'text'}); encode them yourself "
            "(`sklearn.preprocessing.OneHotEncoder`) and build a `ppl_bnn.datasets.Dataset`"
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"{what} has {int((~np.isfinite(x)).sum())} missing values; impute them yourself "
            "(`sklearn.impute.SimpleImputer`) and build a `ppl_bnn.datasets.Dataset`"
        )
    train, test = standard_split(len(x), split)
    y: Any = np.asarray(bunch.target)
    classes: tuple[str, ...] = ()
    if y.dtype.kind in "OUS":
        y_train, y_test, classes = encode_labels(y[train], y[test])
    else:
        y_train, y_test = y[train].astype(float), y[test].astype(float)
    return Dataset(
        x[train].astype(float),
        y_train,
        x[test].astype(float),
        y_test,
        name=name,
        origin=f"openml.org, version {version}",
        features=names(bunch.feature_names),
        targets=names(bunch.target_names),
        classes=classes,
        train_rows=train,
        test_rows=test,
    )


def _scikit_learn() -> Any:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise ImportError(
            "this data set comes through scikit-learn: `pip install scikit-learn`"
        ) from error
    return sklearn.datasets
