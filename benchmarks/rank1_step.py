"""One training step of a rank-1 network ÷ one of the plain network at as many rows, and memory.

The plain network sees K B rows, the rank-1 one B rows once for each of its K components. Third, the
same rank-1 objective with a Python loop over its components in place of one pass. Memory is what
XLA says that the compiled step needs beside its arguments.

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

import ppl_bnn
from ppl_bnn import models, priors
from ppl_bnn.inference.rank1_elbo import Rank1ELBO

K, TOTAL, REQUIRED = 4, 256, 1.25
CASES = {
    "LeNet, 28 x 28": lambda: (models.LeNet(), (28, 28, 1)),
    "MLP (784, 400, 400)": lambda: (models.MLP(784, (400, 400), 10), (784,)),
    "LSTM(64), 48 steps": lambda: (models.SequenceClassifier(37, 64, 2), (48, 37)),
    "ResNet-20-FRN, 32 x 32": lambda: (models.ResNet20FRN(rngs=nnx.Rngs(0)), (32, 32, 3)),
}


def step_of(net: Any, rank1: bool, num_components: int, rows: Any) -> tuple[Callable, Any]:
    """A compiled step of Adam, and its state."""
    prior: Any = {"*": priors.fan_in_normal()}
    options: dict[str, Any] = {"factors": (), "num_components": 1}
    if rank1:
        net = models.rank1(net)
        near_one = dist.Normal(1.0, 0.1)
        prior = {"*.r": near_one, "*.s": near_one} | prior
        options = {"num_components": num_components}
    model = models.classification(net, prior)
    result = ppl_bnn.fit(
        model,
        ppl_bnn.AutoRank1(model, **options),
        rows,
        num_epochs=1,
        batch_size=len(rows[1]),
        progress_bar=False,
    )
    optimizer = optax.adam(1e-3)

    @jax.jit
    def step(params: Any, state: Any, key: jax.Array, x: Any, y: Any) -> Any:
        loss = partial(Rank1ELBO().loss, key)
        value, slope = jax.value_and_grad(lambda params: loss(params, model, result.guide, x, y))(
            params
        )
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(params, updates), state, value

    arguments = result.params, optimizer.init(result.params), jax.random.key(0), *rows
    compiled = step.lower(*arguments).compile()
    return partial(compiled, *arguments), compiled.memory_analysis()


def compare(name: str, num_rounds: int) -> None:
    net, shape = CASES[name]()
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(TOTAL, *shape)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, size=TOTAL))
    few = x[: TOTAL // K], y[: TOTAL // K]
    plain, plain_memory = step_of(net, False, 1, (x, y))
    rank1, rank1_memory = step_of(net, True, K, few)
    single, _ = step_of(net, True, 1, few)
    calls = {
        "plain": plain,
        "rank-1": rank1,
        "loop": lambda: [jax.block_until_ready(single()) for _ in range(K)],
    }
    seconds = time_in_turns(calls, num_rounds)
    slower = np.median(seconds["rank-1"] / seconds["plain"]) > REQUIRED
    print(f"\n{name}, K B = {TOTAL}, plain step {np.median(seconds['plain']) * 1e3:.1f} ms")
    print(
        f"  rank-1 ÷ plain: {ratio(seconds['rank-1'], seconds['plain'], None)}"
        + f"  above {REQUIRED}" * bool(slower)
    )
    print(f"  loop over components ÷ one pass: {ratio(seconds['loop'], seconds['rank-1'], None)}")
    both = rank1_memory.temp_size_in_bytes, plain_memory.temp_size_in_bytes
    print(f"  memory, rank-1 ÷ plain: {both[0] / both[1]:.2f} ({both[0] / 2**20:.0f} MiB)")


if __name__ == "__main__":
    run_cases(__doc__, ("ppl_bnn", "numpyro", "jax", "flax"), list(CASES), compare)
