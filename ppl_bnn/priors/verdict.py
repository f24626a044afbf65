"""The verdict on a prior in words, from the numbers of functions drawn from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_bnn.priors.plot import plot
from ppl_bnn.priors.summary import PriorFunctions

# In standard deviations of the targets (or in logs), which a prior is to be on the scale of.
WIDE, WIDE_LOG, NARROW, FAR = 5.0, 3.0, 0.1, 3.0
HEAVY = 10.0  # times the spread that quartiles tell of
MANY_SURE, UNIFORM, MOST_DRAWS = 0.25, 0.99, 0.5

Finding = tuple[str, str]


@dataclass(frozen=True, eq=False)
class PriorCheck(PriorFunctions):
    """What `check` gives; ``print`` shows the verdict and its numbers, `plot` the functions."""

    @property
    def findings(self) -> list[tuple[str, str]]:
        """What stands out, each with what to do about it."""
        return list(find(self))

    @property
    def verdict(self) -> str:
        """The judgement, in a few sentences."""
        return " ".join(finding for finding, _ in self.findings) or "Nothing stands out."

    @property
    def advice(self) -> list[str]:
        """What to try; empty if nothing stands out."""
        return [cure for _, cure in self.findings]

    def plot(self, num_draws: int = 20, axes: Any = None) -> Any:
        """Draw the functions.

        Parameters
        ----------
        num_draws : int
            Number of draws that are shown one by one.
        axes : pair of matplotlib.axes.Axes, optional
            Where to draw: all draws together on the left, one by one on the right. By default in a
            new figure.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If functions are NaN or infinite in every draw.
        """
        return plot(self, num_draws, axes)

    def __str__(self) -> str:
        size = f"{self.num_points} points, {self.num_draws} draws of the prior"
        lines = [self.verdict, f"Site {self.site!r} at {size}.", *number_lines(self)]
        return "\n".join([*lines, *(f"Try: {cure}" for cure in self.advice)])


def find(check: PriorFunctions) -> Iterator[Finding]:
    """What stands out in a check, the gravest first, each with what to do about it."""
    if check.num_nonfinite:
        yield (
            f"Not usable: functions are NaN or infinite in {check.num_nonfinite} of "
            f"{check.num_draws} draws.",
            "smaller scales, or lighter tails; look for exp() of a network's output",
        )
    if len(check.values) >= 2:
        yield from _find_classes(check) if check.kind == "classes" else _find_numbers(check)


def _find_classes(check: PriorFunctions) -> Iterator[Finding]:
    if check.y is not None:
        missing = np.setdiff1d(np.arange(check.probs.shape[-1]), check.y)
        if len(missing):
            yield (
                f"No row of y has label {', '.join(map(str, missing[:5]))}"
                f"{', ...' if len(missing) > 5 else ''} of 0 to {check.probs.shape[-1] - 1}.",
                "labels without gaps (`datasets.encode_labels`), or as many outputs as classes",
            )
    if check.saturation > MANY_SURE:
        yield (
            f"Saturated: a class has a probability above 0.99 in {check.saturation:.0%} of the "
            "predictions, before any label was seen. The scale is too wide.",
            "smaller scales, such as priors.fan_in_normal()",
        )
    if check.entropy > UNIFORM:
        yield (
            f"Nearly constant: class probabilities are almost equal (entropy {check.entropy:.1%} "
            "of its maximum). The scale is too narrow.",
            "larger scales",
        )
    elif check.num_points > 1 and check.one_class > MOST_DRAWS:
        yield (
            f"One class for all: in {check.one_class:.0%} of the draws one class is the likeliest "
            "at nearly all points.",
            "a narrower prior of the biases (`bias=`), of the last layer above all",
        )


def _find_numbers(check: PriorFunctions) -> Iterator[Finding]:
    is_log = check.kind == "positive"
    width, varied = (check.width / check.unit).max(), (check.across_x / check.unit).min()
    distance = _distance(check)
    if distance > FAR:
        yield (
            f"Far off: the mean of y lies {distance:.2g} standard deviations away from what the "
            "prior expects.",
            "an offset in the model" if is_log else "standardised data (`datasets.standardize`)",
        )
    if is_log and width > WIDE_LOG:
        yield (
            "The scale is too wide: from draw to draw the expected value goes up or down by a "
            f"factor of {_exp(width):.2g}.",
            "smaller scales, such as priors.fan_in_normal()",
        )
    if not is_log and width > WIDE:
        yield (
            f"The scale is too wide: from draw to draw functions differ by {width:.2g} standard "
            "deviations of y.",
            "smaller scales, such as priors.fan_in_normal()",
        )
    if check.num_points > 1 and varied < NARROW:
        size = f"{varied:.1%}" if is_log else f"{varied:.2g} standard deviations of y"
        yield (
            f"Nearly constant: within a draw functions vary by only {size}. The scale is too "
            "narrow.",
            "larger scales; and data that are standardised (`datasets.standardize`)",
        )
    noise = (check.noise / check.unit).max()
    if not is_log and noise > WIDE:
        yield (
            f"The noise is too wide: {noise:.2g} standard deviations of y.",
            "a narrower prior of the noise",
        )
    tail = (check.across_draws / np.maximum(check.width, np.finfo(float).tiny)).max()
    if tail > HEAVY:
        yield (
            f"Heavy tails: a few draws make the standard deviation over draws {tail:.2g} times "
            "what the quartiles tell of.",
            "lighter tails, unless they are meant, as a horseshoe's are",
        )


def _distance(check: PriorFunctions) -> float:
    """Of the targets' mean from the prior's median, in prior predictive standard deviations."""
    if check.y is None:
        return 0.0
    level = check.y.reshape(check.num_points, -1).mean(axis=0)
    reach = check.width
    if check.kind == "positive":
        level = np.log(np.maximum(level, np.finfo(float).tiny))
    else:
        reach = np.hypot(reach, check.noise)
    distance = np.abs(level - np.median(check.values, axis=(0, 1)))
    return float((distance / np.maximum(reach, np.finfo(float).tiny)).max())


def number_lines(check: PriorFunctions) -> Iterator[str]:
    """The numbers behind the verdict, in lines."""
    if len(check.values) < 2:
        return
    what = {"classes": "centred logits", "positive": "log of the mean", "real": "mean"}[check.kind]
    spreads = check.across_draws, check.width, check.across_x
    if check.kind == "classes":  # of all classes together
        spreads = tuple(np.sqrt(np.mean(spread**2, keepdims=True)) for spread in spreads)
    across_draws, width, across_x = map(_range, spreads)
    yield (
        f"Functions ({what}): standard deviation over draws {across_draws} (from quartiles "
        f"{width}), within a draw over points {across_x}."
    )
    if check.kind == "classes":
        yield (
            f"Class probabilities: {check.saturation:.0%} of the predictions above 0.99; entropy "
            f"{check.entropy:.0%} of its maximum; one class at nearly all points in "
            f"{check.one_class:.0%} of the draws."
        )
    elif check.kind == "positive":
        lower, upper = _exp(np.quantile(check.values, [0.05, 0.95]))
        yield f"Expected values: 90 % between {lower:.3g} and {upper:.3g}."
    else:
        predictive = np.hypot(check.across_draws, check.noise)
        unit = "" if check.y is None else f", {_range(predictive / check.unit)} times that of y"
        yield (
            f"Noise: standard deviation {_range(check.noise)} (median). A new value: "
            f"{_range(predictive)}{unit}."
        )


def _exp(values: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.exp(values)


def _range(values: np.ndarray) -> str:
    lower, upper = f"{values.min():.3g}", f"{values.max():.3g}"
    return lower if lower == upper else f"{lower} to {upper}"
