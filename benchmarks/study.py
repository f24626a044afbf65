"""Studies of many fits that can be stopped and gone on with: results by name, one a line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from common import describe_machine, print_versions
from scipy.stats import t as student

Result = dict[str, Any]


class Study:
    """Results that were computed once, in a file of one JSON object a line."""

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path = path
        compiled = path.parent / "compiled"
        compiled.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        settings = json.loads(json.dumps(settings))
        if found and found[0]["settings"] != settings:
            raise SystemExit(
                f"{path} holds results with the settings {found[0]['settings']}, not {settings}: "
                "name another --out, or remove it"
            )
        if not found:
            path.write_text(json.dumps({"settings": settings}) + "\n")
        self.results = {line["name"]: line for line in found[1:]}
        # the same programs are compiled again and again, with other numbers as arguments
        jax.config.update("jax_compilation_cache_dir", str(compiled))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

    def run(self, name: str, compute: Callable[[], Result]) -> Result:
        """What `compute` gives and how long it took, from the file if it is there."""
        if name not in self.results:
            start = time.perf_counter()
            result = {"name": name, **compute(), "seconds": time.perf_counter() - start}
            jax.clear_caches()  # of programs that no later fit will run
            with self.path.open("a") as file:
                file.write(json.dumps(result) + "\n")
            self.results[name] = json.loads(json.dumps(result))
            shown = {k: round(v, 4) for k, v in result.items() if isinstance(v, float)}
            print(f"{name}: {shown}", flush=True)
        return self.results[name]

    def seeds(self, name: str, compute: Callable[[int], Result], count: int) -> list[Result]:
        """What `compute` gives for each seed."""
        return [self.run(f"{name}, seed {seed}", partial(compute, seed)) for seed in range(count)]


def begin(doc: str, name: str, smoke: dict[str, int], **defaults: Any) -> tuple[Any, Study]:
    """Options of a study from its command line, one for each default, and its results so far.

    With ``--quick``, a smoke test, the options in `smoke` have their values there.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for option, value in defaults.items():
        parser.add_argument(f"--{option}", type=type(value), default=value)
    parser.add_argument("--out", type=Path, default=Path("runs") / name)
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(smoke)
    print_versions("ppl_bnn", "numpyro", "jax", "flax")
    describe_machine()
    told = {option: getattr(options, option) for option in defaults}
    return options, Study(options.out / f"results{'-quick' * options.quick}.jsonl", told)


def table(
    rows: dict[str, list[Result]], columns: Sequence[str], also: dict[str, Callable] | None = None
) -> None:
    """Scores of each row, mean and deviation over seeds, what `also` makes of them, and seconds."""
    also = also or {}
    header = ["", *columns, *also, "seconds"]
    print("\n| " + " | ".join(header) + " |\n" + "| --- " * len(header) + "|")
    for name, results in rows.items():
        cells = [spread([r[column] for r in results]) for column in columns]
        cells += [make(results) for make in also.values()]
        seconds = np.mean([r["seconds"] for r in results])
        print(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |")


def whole(result: Any) -> Any:
    """The fit, if it went to its end; an interrupted study ends, and keeps nothing of it."""
    if result.stopped and result.failed_at is None:
        raise SystemExit(f"the study ends here, and the same call goes on: {result.stopped}")
    return result


def spread(values: list[float]) -> str:
    """Mean and, over several seeds, standard deviation."""
    array = np.asarray(values, float)
    if len(array) < 2:
        return f"{array.mean():.4f}"
    return f"{array.mean():.4f} ±{array.std(ddof=1):.4f}"


def paired_interval(ours: list[float], theirs: list[float], level: float = 0.9) -> str:
    """Mean difference over seeds, with the interval of a paired t-test."""
    differences = np.asarray(ours, float) - np.asarray(theirs, float)
    mean, count = differences.mean(), len(differences)
    if count < 2:
        return f"{mean:+.4f}"
    half = student.ppf(0.5 + level / 2, count - 1) * differences.std(ddof=1) / np.sqrt(count)
    return f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}]"
