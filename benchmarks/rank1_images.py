"""Rank-1 networks and their rivals on images, clean and corrupted: accuracy, NLL, ECE.

Every method gets as many tuning trials, judged by the log predictive density of validation images:
step sizes and widths of the weights' prior that are the same for all, and draws of its own
settings. Then comes one fit for each seed, of which the epoch with the best validation counts. An
ensemble holds four fits of the tuned deterministic network. The log-mixture and the positive
families take the settings of the tuned rank-1 (normal).

    python benchmarks/rank1_images.py [--quick] [--data cifar10] [--trials 3] [--seeds 3]

Stopped, the same call goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
import optax
from common import DATA
from flax import nnx
from study import Study, begin, paired_interval, spread, table, whole

import ppl_bnn
from ppl_bnn import datasets, metrics, models, priors

K = 4
BATCH = 20
SAMPLES = 4  # of each component, and 16 of dropout, so that all mix as many
METHODS = {
    "deterministic": {},
    "MC dropout": {"family": "dropout"},
    "BatchEnsemble": {"family": "delta"},
    "rank-1 normal": {"family": "normal"},
    "rank-1 Cauchy": {"family": "cauchy"},
}
VARIANTS = {
    "rank-1 normal, log-mixture": {"family": "normal", "objective": "log_mixture"},
    "rank-1 log-normal": {"family": "log_normal"},
    "rank-1 half-Cauchy": {"family": "half_cauchy"},
}
SCORES = ("accuracy", "nll", "ece", "corrupted accuracy", "corrupted nll", "corrupted ece")
SCALES = {"fashion_mnist": ((0.1307,), 0.3081), "cifar10": ((0.49, 0.48, 0.44), 0.2)}


class Images(NamedTuple):
    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    corrupted: np.ndarray  # (kind, severity, image, ...), of the first test images


def load(name: str, num_train: int, is_quick: bool) -> Images:
    raw = getattr(datasets, name)(DATA, small=True, prepare=False)
    num_test, num_corrupted = (100, 10) if is_quick else (None, 100)
    mean, deviation = SCALES[name]

    def pixels(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float32) / 255
        return x if x.ndim == 4 else x[..., None]

    def scaled(x: np.ndarray) -> np.ndarray:
        return ((x - np.asarray(mean, np.float32)) / deviation).astype(np.float32)

    held_out = min(1500, len(raw.x_train) - num_train)
    if held_out < 100:
        raise SystemExit(
            f"{name} has {len(raw.x_train)} images here, of which --train {num_train} leaves "
            f"{held_out} to validate on: take fewer"
        )
    # test images, and those of training that neither fits nor tuning see
    unused = slice(num_train, len(raw.x_train) - held_out)
    x = pixels(raw.x_train)
    x_test = np.concatenate([pixels(raw.x_test), x[unused]])[:num_test]
    y_test = np.concatenate([raw.y_test, raw.y_train[unused]])[:num_test]
    kinds = datasets.CORRUPTIONS if x.shape[-1] == 3 else datasets.GREY_CORRUPTIONS
    few = x_test[:num_corrupted]
    corrupted = [[scaled(datasets.corrupt(few, kind, s)) for s in range(1, 6)] for kind in kinds]
    return Images(
        (scaled(x[:num_train]), raw.y_train[:num_train].astype(np.int32)),
        (scaled(x[-held_out:]), raw.y_train[-held_out:].astype(np.int32)),
        (scaled(x_test), y_test.astype(np.int32)),
        np.asarray(corrupted),
    )


def settings(family: str | None, trial: int) -> dict[str, float]:
    """One tuning trial; step size and width are the same for all methods, so that none has luck."""
    rng = np.random.default_rng(trial)
    common = {
        "learning_rate": float(10 ** rng.uniform(-2.7, -2)),
        "width": float(2 ** rng.uniform(1, 3)),
    }
    # of r and s; no fit here is long enough to widen a guide far below its prior: Adam moves the
    # logarithm of a scale by less than the sum of its step sizes
    prior_scale = float(10 ** rng.uniform(-1, -0.3))
    narrower = 30 if family == "cauchy" else 1  # its tails reach far for each of many values
    own = {
        "prior_scale": prior_scale,
        "init_scale": prior_scale * float(10 ** rng.uniform(-0.5, 0)) / narrower,
        "init_spread": float(10 ** rng.uniform(-1, -0.3)),
        "dropout_rate": float(rng.uniform(0.05, 0.3)),
    }
    used = {None: (), "dropout": ("dropout_rate",), "delta": ("init_spread",)}
    of_rank1 = ("prior_scale", "init_scale", "init_spread")
    return common | {name: own[name] for name in used.get(family, of_rank1)}


def network(images: Images, seed: int) -> Any:
    _, height, breadth, channels = images.train[0].shape
    return models.LeNet(image_size=(height, breadth), in_channels=channels, rngs=nnx.Rngs(seed))


def fit(images: Images, method: dict, chosen: dict, seed: int, epochs: int) -> ppl_bnn.Fit:
    family, objective = method.get("family"), method.get("objective", "average")
    clip = method.get("clip", 10.0)
    net = network(images, seed)
    weights = priors.fan_in_normal(chosen["width"])
    prior: Any = {"*": weights}
    if family is not None:
        vectors = "s" if family == "dropout" else "both"
        net = models.rank1(net, vectors=vectors, clip=clip if "auchy" in family else None)
        near_one = {
            "cauchy": lambda scale: dist.Cauchy(1.0, scale),
            "log_normal": lambda scale: dist.LogNormal(0.0, scale),
            "half_cauchy": lambda scale: dist.HalfCauchy(1.0),
        }.get(family, lambda scale: dist.Normal(1.0, scale))(
            chosen.get("prior_scale", 1.0)  # which leaves BatchEnsemble's nearly free
        )
        prior = {"*.r": near_one, "*.s": near_one} if vectors == "both" else {"*.s": near_one}
        prior |= {"*": weights}
    model = models.classification(net, prior)
    options: dict[str, Any] = {"num_components": 1, "factors": ()}
    if family == "dropout":
        # not the pixels: dropping the one channel of a grey image drops the image
        layers = [path for path in models.rank1_layers(net).rank1 if path != "convs.0"]
        options = {"num_components": 1, "factors": [f"net/{path}.s" for path in layers]}
        options |= {"family": "dropout", "dropout_rate": chosen["dropout_rate"]}
    elif family is not None:
        options = {"num_components": K, "family": family}
        options |= {name: value for name, value in chosen.items() if name.startswith("init_")}
    steps = epochs * len(images.train[1]) // BATCH
    warm = optax.linear_schedule(0.0, 1.0, max(steps // 2, 1))
    return whole(
        ppl_bnn.fit(
            model,
            ppl_bnn.AutoRank1(model, **options),
            images.train,
            num_epochs=epochs,
            batch_size=BATCH,
            objective=ppl_bnn.Rank1ELBO(objective=objective),
            optimizer=optax.adam(optax.cosine_decay_schedule(chosen["learning_rate"], steps)),
            kl_schedule=warm,
            validation=images.validation,
            progress_bar=False,
            rng_key=jax.random.key(seed),
        )
    )


def judge(draws: Any, images: Images) -> dict[str, Any]:
    """Scores on clean and corrupted test images; ensembles and components count as members."""
    x, y = images.test
    num_kinds, num_severities, num_images = images.corrupted.shape[:3]
    corrupted = images.corrupted.reshape(-1, *x.shape[1:])
    both = np.concatenate([x, corrupted])
    prediction = ppl_bnn.predict(draws, both, return_draws=True)
    probs, members = prediction.probs, prediction.draws.mean(axis=1)
    clean = probs[: len(x)]
    y_corrupted = np.tile(y[:num_images], num_kinds * num_severities)
    log_probs = prediction.log_prob(np.concatenate([y, y_corrupted]))
    wrong = (probs[len(x) :].argmax(1) != y_corrupted).reshape(num_kinds, num_severities, -1)
    by_kind = probs[len(x) :].reshape(num_kinds, num_severities, num_images, -1)
    labels = np.tile(y[:num_images], num_kinds)
    by_severity = [(by_kind[:, i].reshape(len(labels), -1), labels) for i in range(num_severities)]
    return {
        "accuracy": metrics.accuracy(clean, y),
        "nll": float(-log_probs[: len(x)].mean()),
        "ece": metrics.ece(clean, y),
        "corrupted accuracy": float(1 - wrong.mean()),
        "corrupted nll": float(-log_probs[len(x) :].mean()),
        # by severity, all kinds together, then the mean: few images of one kind tell little
        "corrupted ece": float(np.mean([metrics.ece(*both) for both in by_severity])),
        "error by severity": wrong.mean(axis=(0, 2)).tolist(),
        "diversity": metrics.diversity(members[:, : len(x)], y) if len(members) > 1 else None,
    }


def draws_of(result: ppl_bnn.Fit) -> Any:
    many = SAMPLES * K // result.guide.num_components
    return result.best.draws(many)


def run(study: Study, images: Images, trials: int, seeds: int, epochs: int) -> dict[str, list]:
    chosen: dict[str, dict] = {}
    for name, method in METHODS.items():
        found = []
        for trial in range(trials):
            values = settings(method.get("family"), trial)

            def tune(values: dict = values, method: dict = method) -> dict:
                result = fit(images, method, values, 1000, epochs)
                return {"validation": float(result.validation[:, 1].min()), **values}

            found.append((study.run(f"{name}, trial {trial}", tune)["validation"], values))
        chosen[name] = min(found, key=lambda pair: pair[0])[1]
    rows: dict[str, list] = {}
    tuned = chosen["rank-1 normal"]
    for name, method in (METHODS | VARIANTS).items():
        values = chosen.get(name, tuned)

        def once(seed: int, method: dict = method, values: dict = values) -> dict:
            result = fit(images, method, values, seed, epochs)
            size = sum(np.size(value) for value in result.params.values())
            if method.get("family") == "dropout":  # whose locations are constants
                size -= sum(np.size(v) for k, v in result.params.items() if k.endswith("_loc"))
            return judge(draws_of(result), images) | {"parameters": size}

        rows[name] = study.seeds(name, once, seeds)

    def ensemble(seed: int) -> dict:
        members = [
            fit(images, {}, chosen["deterministic"], 100 * (seed + 1) + m, epochs) for m in range(K)
        ]
        size = sum(np.size(v) for member in members for v in member.params.values())
        return judge([member.best for member in members], images) | {"parameters": size}

    rows["deep ensemble of 4"] = study.seeds("deep ensemble of 4", ensemble, seeds)
    return rows


def report(rows: dict[str, list]) -> None:
    def diversity(results: list) -> str:
        values = [r["diversity"] for r in results]
        return "" if None in values else spread(values)

    table(
        rows,
        SCORES,
        {"diversity": diversity, "parameters": lambda results: f"{results[0]['parameters']:,}"},
    )
    print("\nCorrupted error by severity 1 to 5")
    for name, results in rows.items():
        error = np.mean([r["error by severity"] for r in results], axis=0)
        print(f"  {name}: " + " ".join(f"{value:.3f}" for value in error))
    print("\nDifferences over seeds, mean and 90 % interval of a paired t-test")
    for ours in ("rank-1 normal", "rank-1 Cauchy"):
        for theirs in ("deterministic", "BatchEnsemble"):
            for column in ("nll", "ece", "corrupted nll", "corrupted ece"):
                both = ([r[column] for r in rows[n]] for n in (ours, theirs))
                print(f"  {ours} - {theirs}, {column}: {paired_interval(*both)}")


def main() -> None:
    smoke = {"trials": 1, "seeds": 1, "epochs": 1, "train": 200}
    defaults = {"data": "cifar10", "trials": 3, "seeds": 3, "epochs": 12, "train": 1500}
    options, study = begin(__doc__, "rank1_images", smoke, **defaults)
    images = load(options.data, options.train, options.quick)
    report(run(study, images, options.trials, options.seeds, options.epochs))


if __name__ == "__main__":
    main()
