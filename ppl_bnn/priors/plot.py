"""Pictures of functions drawn from the prior."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_bnn.priors.summary import PriorFunctions

FUNCTIONS, DATA = "tab:blue", "black"


def plot(check: PriorFunctions, num_draws: int = 20, axes: Any = None) -> Any:
    """Two panels: all draws together, and some of them one by one.

    Parameters
    ----------
    check : PriorFunctions
        What `ppl_bnn.priors.check` gave.
    num_draws : int
        Number of draws that are shown one by one.
    axes : pair of matplotlib.axes.Axes, optional
        Where to draw; by default in a new figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If no draw is finite.
    """
    if not len(check.values):
        raise ValueError("there is nothing to plot: functions are NaN or infinite in every draw")
    together, one_by_one = _new_axes() if axes is None else axes
    if check.kind == "classes":
        _probabilities(together, check)
        _class_shares(one_by_one, check, num_draws)
    else:
        _values(together, check)
        if _grid(check) is None:
            _ranges(one_by_one, check, num_draws)
        else:
            _lines(one_by_one, check, num_draws)
    return together.figure


def _new_axes() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plotting needs matplotlib: python -m pip install matplotlib") from error
    return Figure(figsize=(9, 3.2), layout="constrained").subplots(1, 2)


def _probabilities(axes: Any, check: PriorFunctions) -> None:
    largest = check.probs.max(axis=-1).ravel()
    axes.hist(largest, np.linspace(0, 1, 51), weights=np.full(len(largest), 100 / len(largest)))
    axes.set(
        xlabel="probability of the likeliest class",
        ylabel="% of draws and points",
        title=f"{check.saturation:.0%} above 0.99",
    )


def _class_shares(axes: Any, check: PriorFunctions, num_draws: int) -> None:
    shares = check.class_shares[:num_draws]
    left = np.zeros(len(shares))
    for share in shares.T:
        axes.barh(np.arange(len(shares)), share, left=left, height=0.8)
        left = left + share
    axes.set(
        xlabel="share of points, by likeliest class",
        ylabel="draw",
        title=f"one class for nearly all in {check.one_class:.0%} of draws",
        xlim=(0, 1),
    )


def _values(axes: Any, check: PriorFunctions) -> None:
    values = check.values.ravel()
    lower, upper = np.quantile(values, [0.005, 0.995])
    axes.hist(values, np.linspace(lower, upper, 51), density=True, color=FUNCTIONS, label="prior")
    if check.y is not None:
        # the logarithm of a count of zero is not to be seen
        y = np.log(check.y[check.y > 0]) if check.kind == "positive" else check.y
        axes.hist(np.ravel(y), 30, density=True, histtype="step", color=DATA, label="y")
        axes.legend(fontsize="small")
    axes.set(xlabel=_label(check), ylabel="density", title="all draws and points")


def _lines(axes: Any, check: PriorFunctions, num_draws: int) -> None:
    x = _grid(check)
    assert x is not None
    order = np.argsort(x)
    axes.plot(x[order], check.values[:num_draws, order, 0].T, color=FUNCTIONS, lw=0.8, alpha=0.7)
    if check.y is not None and check.kind == "real":
        axes.plot(x, check.y.reshape(len(x), -1)[:, 0], ".", ms=3, color=DATA)
    axes.set(xlabel="x", ylabel=_label(check), title="draws, one by one")


def _ranges(axes: Any, check: PriorFunctions, num_draws: int) -> None:
    lower, median, upper = np.quantile(check.values[:num_draws, :, 0], [0.05, 0.5, 0.95], axis=1)
    rows = np.arange(len(median))
    axes.hlines(rows, lower, upper, color=FUNCTIONS, lw=4, alpha=0.5)
    axes.plot(median, rows, "o", ms=3, color=FUNCTIONS)
    axes.set(xlabel=_label(check), ylabel="draw", title="within each draw: 90 % of points")


def _label(check: PriorFunctions) -> str:
    name = "log of the mean" if check.kind == "positive" else "mean"
    return f"{name} of {check.site}" + (", first output" if check.values.shape[-1] > 1 else "")


def _grid(check: PriorFunctions) -> np.ndarray | None:
    """The inputs, if they are one number a point."""
    if len(check.x) != 1 or not hasattr(check.x[0], "shape") or check.x[0].size != check.num_points:
        return None
    return np.ravel(np.asarray(check.x[0]))
