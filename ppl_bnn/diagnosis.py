"""The verdict on a run in words, from the numbers that `diagnose` collects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from ppl_bnn.rhat import RHat

# Below these, an estimate is not to be trusted: Betancourt (2016), Vehtari et al. (2021).
LOW_BFMI = 0.3
ESS_PER_CHAIN = 100
LOW_ACCEPTANCE = 0.5
LOW_SWAP_RATE = 0.001


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The numbers behind a verdict; ``print`` shows the verdict.

    Attributes
    ----------
    rhat
        Rank-normalised split R-hat of the parameters of predictions; None for fewer than 4 draws.
        Its `share_below(1.01)`, `num_constant` and `num_nonfinite` are part of the verdict.
    worst
        The quantities with the largest R-hat, in words, and their R-hat.
    ess_bulk, ess_tail
        Effective sample sizes of the same quantities, those without an R-hat left out.
    num_chains, num_draws, num_points
        Chains, draws in each, and the points of `x` that were looked at.
    stuck_chains
        Chains in which no prediction ever changed, or whose kernel froze.
    num_divergences
        Number of divergent transitions; like all below None where the sampler did not record it.
    bfmi
        E-BFMI of each chain; NaN for a chain whose energy never changed.
    acceptance
        Mean acceptance probability of each chain.
    failed_at
        Transition (with minibatches: step) at which each chain's kernel froze, -1 if it did not.
    num_without_metropolis
        Number of draws that passed no Metropolis test.
    uses_batches
        Whether the kernel went by gradients of minibatches.
    swap_rate
        Share of steps in which replicas swapped, for each pair of neighbours.
    """

    rhat: RHat | None
    worst: list[tuple[str, float]]
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    num_chains: int
    num_draws: int
    num_points: int
    stuck_chains: list[int]
    num_divergences: int | None
    bfmi: np.ndarray | None
    acceptance: np.ndarray | None
    failed_at: np.ndarray | None
    num_without_metropolis: int | None
    uses_batches: bool = False
    swap_rate: np.ndarray | None = None

    @property
    def rhat_of_agreeing_chains(self) -> float:
        """The R-hat below which 95 % of the predictions would lie if all chains agreed perfectly.

        With k half chains of n draws and s effective draws each, the variance of their means is
        1/s of the variance of the draws, times chi-squared with k - 1 degrees of freedom over
        k - 1, and the variance within is (1 - 1/s) n / (n - 1) of it. R-hat is the larger of
        two such ratios, of location and of spread, hence the 97.5 % quantile.
        """
        if not self.ess_bulk.size:
            return float("nan")
        halves, n = 2 * self.num_chains, self.num_draws // 2
        effective = np.median(self.ess_bulk) / halves
        if effective <= 1:
            return float("inf")
        spread = chi2.ppf(0.975, halves - 1) / (halves - 1)
        return float(np.sqrt((n - 1) / n * (1 + spread / (effective - 1))))

    @property
    def has_few_draws(self) -> bool:
        """Whether half of the predictions have a bulk ESS below 100 for each chain."""
        return bool(np.median(self.ess_bulk) < ESS_PER_CHAIN * self.num_chains)

    @property
    def verdict(self) -> str:
        """The judgement on convergence, in a sentence."""
        if self.rhat is None:
            return f"Cannot be judged: {self.num_draws} draws a chain are too few."
        if self.stuck_chains:
            return f"Not usable: chains {self.stuck_chains} are stuck and do not sample."
        if self.rhat.num_nonfinite:
            return f"Not usable: {self.rhat.num_nonfinite} predictions are NaN or infinite."
        if not self.rhat.values.size:
            return "Cannot be judged: every prediction is the same in all draws."
        if self.num_chains == 1:
            drift = "drifts" if self.rhat.max >= 1.1 else "shows no strong drift"
            return (
                f"Cannot be judged from one chain: it {drift} from its first half to its second, "
                "but whether another start would lead elsewhere is unknown."
            )
        if self.rhat.max < 1.01:
            return "No sign of disagreement: R-hat is below 1.01 for all predictions."
        if self.rhat.max < 1.1 and self.has_few_draws:
            return (
                "The chains agree as far as so few draws can show: R-hat is below 1.1 for all "
                "predictions."
            )
        if self.rhat.max < 1.1:
            return "Nearly converged: R-hat is below 1.1 for all predictions, not below 1.01."
        above = 1 - self.rhat.share_below(1.1)
        return f"Not converged: R-hat is 1.1 or more for {above:.1%} of the predictions."

    @property
    def advice(self) -> list[str]:
        """What to try, the most urgent first; empty if nothing stands out."""
        return _advice(self)

    def __str__(self) -> str:
        lines = [self.verdict, *_function_lines(self), *_sampler_lines(self)]
        return "\n".join([*lines, *(f"Try: {advice}" for advice in self.advice)])


def _function_lines(d: Diagnosis) -> list[str]:
    if d.rhat is None:
        return []
    size = f"{d.num_points} points, {d.num_chains} chains x {d.num_draws} draws"
    lines = [f"Predictions at {size}. {d.rhat}"]
    if d.rhat.values.size:
        lines += [
            f"R-hat < 1.01 for {d.rhat.share_below(1.01):.0%}, < 1.1 for "
            f"{d.rhat.share_below(1.1):.0%}; effective sample size of half of them above "
            f"{np.median(d.ess_bulk):.0f} (bulk) and {np.median(d.ess_tail):.0f} (tail), of all "
            f"above {d.ess_bulk.min():.0f} and {d.ess_tail.min():.0f}",
            "Largest R-hat: " + ", ".join(f"{name} ({value:.4g})" for name, value in d.worst),
        ]
        if d.has_few_draws and d.num_chains > 1:
            lines.append(
                "So few effective draws push R-hat above 1 by themselves: 1 in 20 predictions of "
                f"chains that agree would exceed {d.rhat_of_agreeing_chains:.3f}"
            )
    return lines


def _sampler_lines(d: Diagnosis) -> list[str]:
    parts = []
    if d.num_divergences is not None:
        parts.append(f"{d.num_divergences} divergent transitions")
    if d.acceptance is not None:
        parts.append(f"mean acceptance {_each(d.acceptance)}")
    if d.bfmi is not None:
        parts.append(f"E-BFMI {_each(d.bfmi)}")
    lines = [f"Sampler, by chain: {'; '.join(parts)}"] if parts else []
    if d.swap_rate is not None:
        rates = " ".join(f"{rate:.1e}" for rate in d.swap_rate)
        lines.append(f"Swaps a step, by pair of neighbouring replicas: {rates}")
    missing = [
        name for name, value in (("accept_prob", d.acceptance), ("energy", d.bfmi)) if value is None
    ]
    if missing and not d.uses_batches:
        lines.append(f"Not recorded: {', '.join(missing)}; give them to `run` as extra_fields")
    if d.failed_at is not None and (d.failed_at >= 0).any():
        frozen = {i: int(at) for i, at in enumerate(d.failed_at) if at >= 0}
        unit = "step" if d.uses_batches else "transition"
        lines.append(f"The kernel froze (chain: {unit}): {frozen}")
    if d.num_without_metropolis:
        cause = (
            "size of the steps and the gradient's noise bias"
            if d.uses_batches
            else ("integrator's error biases")
        )
        lines.append(
            f"{d.num_without_metropolis} draws passed no Metropolis test: the {cause} them, "
            "whatever R-hat says"
        )
    return lines


def _each(values: np.ndarray) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _advice(d: Diagnosis) -> list[str]:
    advice = []
    if d.rhat is not None and d.rhat.num_nonfinite and not d.stuck_chains:
        advice.append("look for overflow in the model, such as exp() of a network's output")
    if d.stuck_chains:
        advice.append("smaller steps (`step_size`), or starts of higher density (`init_strategy`)")
    if d.num_divergences:
        advice.append("smaller steps, by `step_size` or a `target_accept_prob` nearer to 1")
    if d.acceptance is not None and (d.acceptance < LOW_ACCEPTANCE).any():
        advice.append("smaller steps: proposals are mostly rejected in some chain")
    if d.bfmi is not None and (d.bfmi < LOW_BFMI).any():
        advice.append(
            "a longer warm-up, and priors with lighter tails, of scales above all: the energy "
            f"moves too slowly from draw to draw (E-BFMI below {LOW_BFMI})"
        )
    if d.num_chains == 1:
        advice.append("at least 4 chains from different starts")
    if d.rhat is not None and d.rhat.values.size and d.has_few_draws and not d.stuck_chains:
        factor = ESS_PER_CHAIN * d.num_chains / np.median(d.ess_bulk)
        advice.append(f"about {factor:.1f} times as many draws, for {ESS_PER_CHAIN} ESS a chain")
    if d.rhat is not None and d.rhat.values.size and d.rhat.max >= 1.1:
        further = "more `steps_per_draw`" if d.uses_batches else "longer trajectories"
        advice.append(f"a longer warm-up, and {further} if draws follow each other slowly")
    if d.swap_rate is not None and (d.swap_rate < LOW_SWAP_RATE).any():
        advice.append(
            'larger batches, `gradient="control_variates"`, or `temperatures` nearer to each '
            "other: replicas that hardly swap are of no use"
        )
    if d.num_without_metropolis and d.uses_batches:
        advice.append("a run at half the `step_size`: predictions that differ were biased")
    elif d.num_without_metropolis:
        advice.append("`metropolis=True`, unless the bias is what is studied")
    return advice
