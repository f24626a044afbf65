"""Gradients of convolutional networks on CPUs: inside a compiled loop ÷ outside, chains ÷ one.

ResNet-20-FRN on 500 images, its convolutions with the package's derivative rule and with XLA's own
(jax issue 12868). The loop is a descent of a few steps, as a leapfrog trajectory is one. For
chains, one gradient of several sets of weights under `jax.vmap` is divided by the same gradients
one after the other (`jax.lax.map`).

    python benchmarks/convolutions_in_loops.py [--quick] [--rounds 5] [--rule ours XLA's]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from common import DATA, describe_machine, print_versions, time_in_turns
from flax import nnx

from ppl_bnn import models
from ppl_bnn.networks import as_network

NUM_CHAINS = 4
REQUIRED = 1.3
SLOW = 30.0  # seconds, above which a call is timed once
XLA = "XLA's"
RULES = {"ours": models.conv_general_dilated, XLA: jax.lax.conv_general_dilated}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="24 images, two rounds")
    parser.add_argument("--rule", nargs="+", choices=list(RULES), default=list(RULES))
    options = parser.parse_args()
    print_versions("ppl_bnn", "jax", "jaxlib", "flax")
    describe_machine()
    num_rows = 24 if options.quick else 500
    num_rounds = 2 if options.quick else options.rounds
    print(f"\nResNet-20-FRN, {num_rows} images, {NUM_CHAINS} chains, {num_rounds} rounds")

    x, y = load_images(num_rows)
    calls = {}
    for rule in options.rule:
        calls |= contenders(rule, *make_gradient(RULES[rule], x, y))
    spent = time_in_turns({n: call for n, (call, _) in calls.items()}, num_rounds, too_slow=SLOW)
    report({name: seconds / calls[name][1] for name, seconds in spent.items()})


def load_images(num_rows: int) -> tuple[jax.Array, jax.Array]:
    """Real images if they are there, otherwise noise of the same shape."""
    path = DATA / "images" / "cifar10_small.npz"
    if path.exists():
        with np.load(path) as arrays:
            x, y = arrays["x_train"][:num_rows], arrays["y_train"][:num_rows]
        x = (x / np.float32(255) - np.float32(0.47)) / np.float32(0.2)
    else:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(num_rows, 32, 32, 3)).astype(np.float32)
        y = rng.integers(0, 10, size=num_rows)
    return jnp.asarray(x), jnp.asarray(y, jnp.int32)


def make_gradient(convolve: Callable, x: jax.Array, y: jax.Array) -> tuple[Callable, dict]:
    net = models.ResNet20FRN()
    for _, module in nnx.iter_modules(net):
        if isinstance(module, nnx.Conv):
            module.conv_general_dilated = convolve
    network = as_network(net)

    def loss(weights, x, y):
        log_probs = jax.nn.log_softmax(network.apply(weights, x))
        return -jnp.sum(jnp.take_along_axis(log_probs, y[:, None], axis=1))

    gradient = jax.grad(loss)
    return lambda weights: gradient(weights, x, y), network.init(None)


def contenders(rule: str, gradient: Callable, weights: dict) -> dict[str, tuple[Callable, int]]:
    """Compiled calls by name, and how many gradients each makes."""

    def descend(weights, num_steps):
        def body(_, weights):
            return jax.tree.map(lambda w, g: w - 1e-6 * g, weights, gradient(weights))

        return jax.lax.fori_loop(0, num_steps, body, weights)

    chains = jax.tree.map(
        lambda w: w * (1 + 1e-3 * jnp.arange(NUM_CHAINS).reshape(-1, *[1] * w.ndim)), weights
    )
    direct, loop, side_by_side = jax.jit(gradient), jax.jit(descend), jax.jit(jax.vmap(gradient))
    in_turn = jax.jit(lambda chains: jax.lax.map(gradient, chains))
    steps = 3 if rule == "ours" else 1  # XLA's takes a minute for each
    calls = {
        f"{rule}, direct": (lambda: direct(weights), 1),
        f"{rule}, in a loop": (lambda: loop(weights, steps), steps),
        f"{rule}, chains by vmap": (lambda: side_by_side(chains), NUM_CHAINS),
    }
    if rule == "ours":  # the map is a loop too
        calls[f"{rule}, chains by lax.map"] = (lambda: in_turn(chains), NUM_CHAINS)
    return calls


def report(seconds: dict[str, np.ndarray]) -> None:
    print(f"{'':24} s per gradient")
    for name, spent in seconds.items():
        print(f"{name:24} {np.nanmedian(spent):10.3f}   ({np.isfinite(spent).sum()} rounds)")

    def tell(what: str, above: str, below: str) -> float:
        if above not in seconds or below not in seconds:
            return 0.0
        ratio = float(np.nanmedian(seconds[above] / seconds[below]))  # round by round
        print(f"{what:34} {ratio:.2f}")
        return ratio

    print()
    in_loop = tell("in a loop ÷ direct, ours:", "ours, in a loop", "ours, direct")
    if in_loop > REQUIRED:
        print(f"above {REQUIRED}")
    tell("in a loop ÷ direct, XLA's:", XLA + ", in a loop", XLA + ", direct")
    tell("direct, ours ÷ XLA's:", "ours, direct", XLA + ", direct")
    tell("vmap ÷ lax.map over chains, ours:", "ours, chains by vmap", "ours, chains by lax.map")
    tell("chains by vmap, XLA's ÷ ours:", XLA + ", chains by vmap", "ours, chains by vmap")


if __name__ == "__main__":
    main()
