"""Recurrent cells over sequences with steps left out."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from ppl_bnn.arguments import check_choice

Cell: TypeAlias = nnx.OptimizedLSTMCell | nnx.GRUCell


def _sigmoid(x: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(x)


def _tanh(x: jax.Array) -> jax.Array:
    return jnp.tanh(x)


def make_cell(cell: str, in_features: int, hidden_size: int, rngs: nnx.Rngs) -> Cell:
    """Give a recurrent cell by name.

    Its parameters are ``dense_i.kernel`` (inputs) and ``dense_h.kernel`` (state), with the gates
    side by side on the last axis, and one ``bias``: ``dense_h.bias`` of an LSTM, ``dense_i.bias``
    of a GRU.

    Parameters
    ----------
    cell : {"lstm", "gru"}
        Long short-term memory (Hochreiter and Schmidhuber, 1997) or gated recurrent unit (Cho et
        al., 2014).
    in_features, hidden_size : int
        Sizes of inputs and state.
    rngs : flax.nnx.Rngs
        Keys.

    Raises
    ------
    ValueError
        If there is no such name.
    """
    check_choice("cell", cell, ("lstm", "gru"))
    kind = nnx.OptimizedLSTMCell if cell == "lstm" else nnx.GRUCell
    # flax's default functions cannot be pickled
    return kind(in_features, hidden_size, gate_fn=_sigmoid, activation_fn=_tanh, rngs=rngs)


def last_state(
    cell: Cell, x: Float[Array, "N T F"], mask: Bool[Array, "N T"] | None = None
) -> Float[Array, "N H"]:
    """Run a cell over sequences and give its last hidden state.

    Parameters
    ----------
    cell : Cell
        What `make_cell` gives.
    x : jax.Array
        Shape (N, steps, features).
    mask : jax.Array, optional
        Shape (N, steps): True where there is a step. Elsewhere the state passes unchanged and x,
        whatever it holds, has no part in value or gradient. By default all are steps.

    Returns
    -------
    jax.Array
        Shape (N, hidden_size); zeros for a sequence without any step.
    """
    dtype = jnp.result_type(x, *jax.tree.leaves(nnx.state(cell, nnx.Param)))
    zeros = jnp.zeros((x.shape[0], cell.hidden_features), dtype)
    start = (zeros, zeros) if isinstance(cell, nnx.OptimizedLSTMCell) else zeros
    is_step = None
    if mask is not None:
        # a NaN in what is left out would reach the gradient through `where` alone
        x = jnp.where(mask[..., None], x, 0.0)
        is_step = mask.T[..., None]
    steps = (jnp.moveaxis(x, 1, 0), is_step)

    def advance(state, step):
        inputs, is_step = step
        new, _ = cell(state, inputs)
        if is_step is not None:
            new = jax.tree.map(lambda a, b: jnp.where(is_step, a, b), new, state)
        return new, None

    end, _ = jax.lax.scan(advance, start, steps)
    return end[1] if isinstance(end, tuple) else end
