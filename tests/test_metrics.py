import numpy as np
import pytest
from scipy import stats

from ppl_bnn import metrics

PROBS = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.5, 0.5]])
LABELS = np.array([0, 1, 1, 0])


def test_regression_scores_by_hand():
    assert metrics.rmse([1.0, 2.0], [0.0, 4.0]) == pytest.approx(np.sqrt(2.5))
    assert metrics.interval_coverage([0, 0, 0], [1, 1, 1], [0.0, 1.0, 1.5]) == pytest.approx(2 / 3)


def test_moment_matched_nll_is_scipys():
    rng = np.random.default_rng(0)
    mean, variance, y = rng.normal(size=9), rng.gamma(2, size=9), rng.normal(size=9)
    expected = -stats.norm(mean, np.sqrt(variance)).logpdf(y).mean()
    assert metrics.moment_matched_nll(mean, variance, y) == pytest.approx(expected, rel=1e-12)


def test_log_predictive_density_is_that_of_the_mixture():
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(6, 9)), rng.normal(size=9)
    log_likelihood = stats.norm(mean, 0.5).logpdf(y)
    expected = np.log(stats.norm(mean, 0.5).pdf(y).mean(axis=0)).mean()
    assert metrics.log_predictive_density(log_likelihood) == pytest.approx(expected, rel=1e-12)
    by_chain = log_likelihood.reshape(2, 3, 9)
    assert metrics.log_predictive_density(by_chain) == pytest.approx(expected, rel=1e-12)


def test_log_predictive_density_does_not_underflow():
    assert metrics.log_predictive_density(np.full((5, 2), -2000.0)) == pytest.approx(-2000.0)


def test_classification_scores_by_hand():
    assert metrics.accuracy(PROBS, LABELS) == 0.75
    assert metrics.brier(PROBS, LABELS) == pytest.approx(2 * (0.04 + 0.09 + 0.36 + 0.25) / 4)
    other = PROBS[:, ::-1]
    assert metrics.agreement(PROBS, PROBS) == 1.0 and metrics.agreement(PROBS, other) == 0.25
    assert metrics.total_variation(PROBS, other) == pytest.approx((0.6 + 0.4 + 0.2 + 0.0) / 4)


def test_ece_by_hand():
    # Confidences .8 (right), .7 (right), .6 (wrong), .5 (right); bins (.4, .6] and (.6, .8].
    expected = (abs(1.1 - 1) + abs(1.5 - 2)) / 4
    assert metrics.ece(PROBS, LABELS, num_bins=5, binning="equal_width") == pytest.approx(expected)
    assert metrics.ece(PROBS, LABELS, num_bins=2) == pytest.approx(expected)
    assert metrics.ece(PROBS, LABELS, num_bins=1) == pytest.approx(abs(2.6 - 3) / 4)


@pytest.mark.parametrize("binning", ["equal_mass", "equal_width"])
def test_ece_drops_no_point(binning):
    # All confidences are one number, on an edge: a rule that drops edges would report 0.
    probs = np.tile([0.75, 0.25], (40, 1))
    labels = np.repeat([0, 1], 20)
    assert metrics.ece(probs, labels, num_bins=4, binning=binning) >= 0.25 - 1e-12
    assert metrics.ece(np.eye(2), np.array([1, 0]), num_bins=4, binning=binning) == 1.0


def test_ece_of_calibrated_predictions_is_small():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 100_000)
    labels = (rng.uniform(size=p.size) > p).astype(int)
    for binning in ("equal_mass", "equal_width"):
        # Twenty bins of 5,000 or more: the mean absolute error of a bin is below .0056.
        assert metrics.ece(np.stack([p, 1 - p], 1), labels, binning=binning) < 0.0085


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse(np.ones((3, 1)), np.ones(3)), r"one shape.*\(3, 1\) and \(3,\)"),
        (lambda: metrics.rmse([], []), "not be empty"),
        (lambda: metrics.moment_matched_nll([0.0], [0.0], [0.0]), "must be positive"),
        (lambda: metrics.interval_coverage([1.0], [0.0], [0.0]), "exceeds `upper`"),
        (lambda: metrics.log_predictive_density(np.ones(3)), r"\(draw, point\)"),
        (lambda: metrics.accuracy(PROBS, LABELS + 0.0), "integer class labels, got dtype float64"),
        (lambda: metrics.accuracy(PROBS, LABELS + 1), "from 0 to 1, got 1 to 2"),
        (lambda: metrics.brier(PROBS, LABELS[:3]), r"`y` must have shape \(4,\)"),
        (lambda: metrics.brier(PROBS * 3, LABELS), "were logits given"),
        (lambda: metrics.ece(PROBS, LABELS, binning="quantile"), "'quantile'"),
        (lambda: metrics.ece(PROBS, LABELS, num_bins=0), "at least 1"),
        (lambda: metrics.agreement(PROBS, PROBS[:2]), r"one shape, got \(4, 2\), \(2, 2\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_diversity_is_disagreement_in_units_of_the_error():
    """Three members on four points; the mean is right at three of them."""
    a, b = [0.9, 0.1], [0.2, 0.8]
    members = [[a, a, b, a], [a, b, b, a], [a, a, b, a]]
    # pairs differ at a quarter of the points, nowhere, at a quarter
    assert metrics.diversity(members, [0, 0, 1, 1]) == pytest.approx((0.25 + 0 + 0.25) / 3 / 0.25)
    assert np.isnan(metrics.diversity(members, [0, 0, 1, 0]))
    with pytest.raises(ValueError, match="at least two members"):
        metrics.diversity(members[:1], [0, 0, 1, 1])
    with pytest.raises(ValueError, match="must have shape"):
        metrics.diversity(members[0], [0, 0, 1, 1])
