"""Rank-1 and other LSTMs on stays in intensive care: death in hospital, PhysioNet 2012.

Set a trains, b chooses settings and the epoch, c tests. The network reads the means of four hours,
of values carried forward from when they were measured and cut at three standard deviations, and how
often they were measured; then age, gender, height, weight and unit. Every method gets as many
tuning trials, drawn from the same ranges, then a fit for each seed; 25 draws make a prediction, and
four fits an ensemble.

    python benchmarks/rank1_icu.py [--quick] [--trials 3] [--seeds 3]

Stopped, the same call goes on.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
import optax
from common import DATA
from flax import nnx
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from study import begin, paired_interval, table, whole

import ppl_bnn
from ppl_bnn import datasets, metrics, models, priors

K, BATCH, HIDDEN, SAMPLES = 4, 100, 16, 25
METHODS = {
    "deterministic": {"factors": (), "num_components": 1},
    "fully variational": {"factors": (), "mean_field": ("*",), "num_components": 1},
    "rank-1 normal": {"num_components": K},
    "rank-1 Cauchy": {"num_components": K, "family": "cauchy"},
}
COLUMNS = ("nll", "AUC-PR", "AUROC", "ece")
HOURS, CUT = 4, 3.0  # of a step; in standard deviations


def load(few: bool) -> dict[str, Stays]:
    data = datasets.physionet2012(DATA)
    parts = {
        "train": (data.x_train, data.y_train),
        "validation": (data.x_validation, data.y_validation),
        "test": (data.x_test, data.y_test),
    }
    return {
        name: Stays(*(np.asarray(leaf)[: 200 if few else None] for leaf in (*series, y)))
        for name, (series, y) in parts.items()
    }


class Stays(NamedTuple):
    """Raw hours, and what the models see of them."""

    hours: np.ndarray  # (stay, hour, variable), standardised
    mask: np.ndarray  # every stay has all its hours
    observed: np.ndarray
    static: np.ndarray
    died: np.ndarray

    def carried(self) -> np.ndarray:
        """The value last measured; 0, the mean, before the first."""
        last = np.where(self.observed, np.arange(self.hours.shape[1])[:, None], -1)
        last = np.maximum.accumulate(last, axis=1)
        values = np.take_along_axis(self.hours, np.maximum(last, 0), axis=1)
        return np.clip(np.where(last >= 0, values, 0), -CUT, CUT)

    def inputs(self) -> dict[str, np.ndarray]:
        """Of the networks."""
        both = np.concatenate([self.carried(), self.observed], axis=-1).astype(np.float32)
        blocks = both.reshape(len(both), -1, HOURS, both.shape[-1])
        return {"x": blocks.mean(axis=2), "static": self.static}

    def summary(self) -> np.ndarray:
        """Of the logistic regression: mean, extremes, first and last value, and how many."""
        x, seen = np.clip(self.hours, -CUT, CUT), self.observed
        count, any_seen = seen.sum(axis=1), seen.any(axis=1)
        mean = np.where(seen, x, 0).sum(axis=1) / np.maximum(count, 1)
        low = np.where(any_seen, np.where(seen, x, np.inf).min(axis=1), 0)
        high = np.where(any_seen, np.where(seen, x, -np.inf).max(axis=1), 0)
        first = np.take_along_axis(x, seen.argmax(axis=1)[:, None], axis=1)[:, 0]
        first = np.where(any_seen, first, 0)
        last, counts = self.carried()[:, -1], np.log1p(count)
        columns = [mean, low, high, first, last, any_seen, counts, self.static]
        return np.concatenate(columns, axis=1)


def fit(stays: dict[str, Stays], name: str, chosen: dict, seed: int, epochs: int) -> ppl_bnn.Fit:
    options: dict[str, Any] = dict(METHODS[name])
    train, held_out = ((stays[part].inputs(), stays[part].died) for part in ("train", "validation"))
    x, y = train
    net: Any = models.SequenceClassifier(
        x["x"].shape[-1], HIDDEN, 2, static_features=x["static"].shape[-1], rngs=nnx.Rngs(seed)
    )
    prior: Any = {"*": priors.fan_in_normal(chosen["width"])}
    if name.startswith("rank-1"):
        heavy = "Cauchy" in name
        net = models.rank1(net, clip=10.0 if heavy else None)
        near_one = (dist.Cauchy if heavy else dist.Normal)(1.0, chosen["prior_scale"])
        prior = {"*.r": near_one, "*.s": near_one} | prior
    model = models.classification(net, prior)
    steps = epochs * len(y) // BATCH
    return whole(
        ppl_bnn.fit(
            model,
            ppl_bnn.AutoRank1(model, **options),
            train,
            num_epochs=epochs,
            batch_size=BATCH,
            optimizer=optax.adam(optax.cosine_decay_schedule(chosen["learning_rate"], steps)),
            kl_schedule=optax.linear_schedule(0.0, 1.0, steps // 2),
            validation=held_out,
            progress_bar=False,
            rng_key=jax.random.key(seed),
        )
    )


def judge(draws: Any, test: Stays) -> dict[str, float]:
    prediction = ppl_bnn.predict(draws, test.inputs())
    nll = float(-prediction.log_prob(test.died).mean())
    return {"nll": nll, **scores(prediction.probs, test.died)}


def scores(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    return {
        "AUC-PR": float(average_precision_score(y, probs[:, 1])),
        "AUROC": float(roc_auc_score(y, probs[:, 1])),
        "ece": metrics.ece(probs, y),
    }


def logistic_regression(train: Stays, test: Stays) -> dict[str, float]:
    x, x_test = train.summary(), test.summary()
    centre, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6
    plain = LogisticRegression(C=0.01, max_iter=3000).fit((x - centre) / deviation, train.died)
    probs = plain.predict_proba((x_test - centre) / deviation)
    nll = -np.log(probs[np.arange(len(probs)), test.died]).mean()
    return {"nll": float(nll), **scores(probs, test.died), "parameters": x.shape[1] + 1}


def main() -> None:
    smoke = {"trials": 1, "seeds": 1, "epochs": 1}
    options, study = begin(__doc__, "rank1_icu", smoke, trials=3, seeds=3, epochs=12)
    stays = load(options.quick)
    rows = {
        "logistic regression": [
            study.run(
                "logistic regression", partial(logistic_regression, stays["train"], stays["test"])
            )
        ]
    }
    chosen: dict[str, dict] = {}
    for number, name in enumerate(METHODS):
        found = []
        for trial in range(options.trials):
            rng = np.random.default_rng([trial, number])
            values = {
                "learning_rate": float(10 ** rng.uniform(-2.7, -1.7)),
                "width": float(2 ** rng.uniform(-0.5, 1.5)),
                "prior_scale": float(10 ** rng.uniform(-1.3, -0.5)),
            }

            def tune(name: str = name, values: dict = values) -> dict:
                result = fit(stays, name, values, 1000, options.epochs)
                return {"validation": float(result.validation[:, 1].min()), **values}

            found.append((study.run(f"{name}, trial {trial}", tune)["validation"], values))
        chosen[name] = min(found, key=lambda pair: pair[0])[1]

        def once(seed: int, name: str = name) -> dict:
            result = fit(stays, name, chosen[name], seed, options.epochs)
            size = sum(np.size(value) for value in result.params.values())
            draws = result.best.draws(-(-SAMPLES // result.guide.num_components))
            return judge(draws, stays["test"]) | {"parameters": size}

        rows[name] = study.seeds(name, once, options.seeds)

    def ensemble(seed: int) -> dict:
        seeds = [100 * (seed + 1) + member for member in range(K)]
        name = "deterministic"
        members = [fit(stays, name, chosen[name], s, options.epochs).best for s in seeds]
        size = sum(np.size(v) for member in members for v in member.params.values())
        return judge(members, stays["test"]) | {"parameters": size}

    name = "deep ensemble of 4"
    rows[name] = study.seeds(name, ensemble, options.seeds)
    table(rows, COLUMNS, {"parameters": lambda results: f"{results[0]['parameters']:,}"})
    print("\nDifferences over seeds, mean and 90 % interval of a paired t-test")
    for other in ("deterministic", "deep ensemble of 4", "fully variational"):
        for column in COLUMNS:
            both = ([r[column] for r in rows[n]] for n in ("rank-1 normal", other))
            print(f"  rank-1 normal - {other}, {column}: {paired_interval(*both)}")


if __name__ == "__main__":
    main()
