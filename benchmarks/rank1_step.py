"""One training step of a rank-1 network ÷ one of the plain network at as many rows, and memory.

The plain network sees K B rows, the rank-1 one B rows once for each of its K components, with draws
for each row that are independent, flipped, or one for all rows; or K B rows, each with a component
drawn for it. Last, a Python loop over the components in place of one pass. Memory is what XLA says
that the compiled step needs beside its arguments.

    python benchmarks/rank1_step.py [--quick] [--rounds 15]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from common import ratio, run_cases, time_in_turns
from flax import nnx
from numpyro import handlers

import ppl_bnn
from ppl_bnn import models, priors

K, TOTAL, REQUIRED = 4, 256, 1.25
CASES = {
    "LeNet, 28 x 28": lambda: (models.LeNet(), (28, 28, 1)),
    "MLP (784, 400, 400)": lambda: (models.MLP(784, (400, 400), 10), (784,)),
    "LSTM(64), 48 steps": lambda: (models.SequenceClassifier(37, 64, 2), (48, 37)),
    "ResNet-20-FRN, 32 x 32": lambda: (models.ResNet20FRN(rngs=nnx.Rngs(0)), (32, 32, 3)),
}


def step_of(net: Any, rows: Any, num_components: int, **options: Any) -> tuple[Callable, Any]:
    """A compiled step of Adam, and its memory; without components that of the plain network."""
    prior: Any = {"*": priors.fan_in_normal()}
    own: dict[str, Any] = {"factors": (), "num_components": 1}
    if num_components:
        net = models.rank1(net)
        near_one = dist.Normal(1.0, 0.1)
        prior = {"*.r": near_one, "*.s": near_one} | prior
        own = {"num_components": num_components}
    model = models.classification(net, prior)
    guide, objective = ppl_bnn.AutoRank1(model, **own), ppl_bnn.Rank1ELBO(**options)
    trace = handlers.trace(handlers.seed(guide, 0)).get_trace(*rows)
    params = {name: site["value"] for name, site in trace.items() if site["type"] == "param"}
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(params: Any, state: Any, key: jax.Array, x: Any, y: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return objective.loss(key, params, model, guide, x, y)

        value, slope = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(params, updates), state, value

    arguments = params, optimizer.init(params), jax.random.key(0), *rows
    compiled = step.lower(*arguments).compile()
    return partial(compiled, *arguments), compiled.memory_analysis().temp_size_in_bytes


def compare(name: str, num_rounds: int) -> None:
    net, shape = CASES[name]()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(TOTAL, *shape)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, size=TOTAL))
    few = x[: TOTAL // K], y[: TOTAL // K]
    steps = {
        "plain": step_of(net, (x, y), 0),
        "rank-1": step_of(net, few, K),
        "flipped": step_of(net, few, K, per_example="flipped"),
        "one draw for all rows": step_of(net, few, K, per_example=False),
        "a component for each row": step_of(net, (x, y), K, assignment="sampled"),
    }
    single, _ = step_of(net, few, 1)
    calls = {kind: step for kind, (step, _) in steps.items()}
    calls["loop"] = lambda: [jax.block_until_ready(single()) for _ in range(K)]
    seconds = time_in_turns(calls, num_rounds)
    plain = seconds["plain"]
    print(f"\n{name}, K B = {TOTAL}, plain step {np.median(plain) * 1e3:.1f} ms")
    for kind, (_, memory) in steps.items():
        if kind != "plain":
            above = f"  above {REQUIRED}" * bool(np.median(seconds[kind] / plain) > REQUIRED)
            of_memory = f"memory {memory / steps['plain'][1]:.2f}"
            print(f"  {kind} ÷ plain: {ratio(seconds[kind], plain, None)}{above}; {of_memory}")
    print(f"  loop over components ÷ one pass: {ratio(seconds['loop'], seconds['rank-1'], None)}")


if __name__ == "__main__":
    run_cases(__doc__, ("ppl_bnn", "numpyro", "jax", "flax"), list(CASES), compare)
