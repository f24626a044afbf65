"""Convolution and LSTM over word embeddings, for text."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from ppl_bnn.arguments import check_choice
from ppl_bnn.models.activations import Activation, activate, check_activation
from ppl_bnn.models.convolution import conv_general_dilated
from ppl_bnn.models.options import check_sizes, describe
from ppl_bnn.models.pooling import POOLINGS, pool
from ppl_bnn.models.recurrent import last_state, make_cell

WINDOW, POOL = 5, 4


class CNNLSTM(nnx.Module):
    """The CNN-LSTM of Izmailov et al. (2021) for IMDB reviews, by default in a smooth version.

    Embedding, convolution over 5 words, activation, pooling by 4, LSTM, dense layer on the last
    hidden state. 2,700,098 parameters for 20,000 words and two classes: ``embedding.embedding``
    of shape (words, 128); ``conv.kernel`` (5, 128, 64) and ``conv.bias``; ``lstm.dense_i.kernel``
    (64, 512), ``lstm.dense_h.kernel`` (128, 512) and ``lstm.dense_h.bias``; ``dense.kernel`` and
    ``dense.bias``.

    ``activation="relu", pooling="max"`` gives the network of the released code.

    Parameters
    ----------
    vocab_size : int
        Number of token ids, padding included.
    num_classes : int
        Number of outputs.
    activation : str or callable
        As in `ppl_bnn.models.activations.activate`.
    pooling : {"average", "max"}
        Pooling after the convolution.
    embedding_size, filters, hidden_size : int
        Sizes of embedding, convolution and LSTM state.
    rngs : flax.nnx.Rngs, optional
        Keys for the initial weights, ``nnx.Rngs(0)`` by default.

    Raises
    ------
    ValueError
        If a size is not positive or a name is unknown; and in a call, if the token ids are not
        integers of shape (N, length) with length at least 8.

    Notes
    -----
    Padding is a token like any other, as in the paper, which puts it before the text and keeps the
    last 100 words. A token id outside of the vocabulary makes the outputs of its row NaN, since a
    compiled program can raise no error; `check_inputs` raises one.

    References
    ----------
    Izmailov, Vikram, Hoffman and Wilson (2021), *What are Bayesian neural network posteriors really
    like?*, and its released code.
    """

    def __init__(
        self,
        vocab_size: int = 20_000,
        num_classes: int = 2,
        *,
        activation: Activation = "swish",
        pooling: str = "average",
        embedding_size: int = 128,
        filters: int = 64,
        hidden_size: int = 128,
        rngs: nnx.Rngs | None = None,
    ):
        check_activation(activation)
        check_choice("pooling", pooling, POOLINGS)
        check_sizes(
            vocab_size=vocab_size,
            num_classes=num_classes,
            embedding_size=embedding_size,
            filters=filters,
            hidden_size=hidden_size,
        )
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.vocab_size, self.num_classes = vocab_size, num_classes
        self.activation, self.pooling = activation, pooling
        self.embedding = nnx.Embed(vocab_size, embedding_size, rngs=rngs)
        self.conv = nnx.Conv(
            embedding_size,
            filters,
            (WINDOW,),
            padding="VALID",
            conv_general_dilated=conv_general_dilated,
            rngs=rngs,
        )
        self.lstm = make_cell("lstm", filters, hidden_size, rngs)
        self.dense = nnx.Linear(hidden_size, num_classes, rngs=rngs)

    def __call__(self, ids: Shaped[Array | np.ndarray, "..."]) -> Float[Array, "N K"]:
        """Give logits (N, num_classes) for token ids (N, length)."""
        shortest = WINDOW + POOL - 1
        if ids.ndim != 2 or ids.shape[1] < shortest:
            raise ValueError(
                f"ids has shape {ids.shape}, but CNNLSTM takes token ids of shape (N, length), "
                f"with length at least {shortest}: pad shorter texts"
            )
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            raise ValueError(f"ids must be integers (token ids), got {ids.dtype}")
        if not isinstance(ids, jax.core.Tracer):
            self.check_inputs(ids)
        ids = jnp.asarray(ids)
        if ids.dtype.itemsize < 4:  # which could not hold the vocabulary's size
            ids = ids.astype(jnp.int32)
        outside = (ids < 0) | (ids >= self.vocab_size)
        words = self.embedding(jnp.where(outside, 0, ids))
        words = jnp.where(outside[..., None], jnp.nan, words)
        units = activate(self.activation, self.conv(words))
        units = pool(units, self.pooling, POOL)
        return self.dense(last_state(self.lstm, units))

    def check_inputs(self, ids: Any) -> None:
        """Refuse token ids outside of the vocabulary.

        Raises
        ------
        ValueError
            Says which is the largest and where the first is.
        """
        ids = np.asarray(ids)
        if not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"ids must be integers (token ids), got {ids.dtype}")
        outside = (ids < 0) | (ids >= self.vocab_size)
        if outside.any():
            first = tuple(int(i) for i in np.argwhere(outside)[0])
            raise ValueError(
                f"ids must lie from 0 to {self.vocab_size - 1} (vocab_size {self.vocab_size}), but "
                f"{int(outside.sum())} do not, the first at index {first}: {ids[first]}; the "
                f"smallest is {ids.min()}, the largest {ids.max()}. Map rare words to the id for "
                "unknown ones, or build the network with a larger vocab_size"
            )

    def __repr__(self) -> str:
        """Show how the network was built, without its arrays."""
        return describe(
            "CNNLSTM",
            self.vocab_size,
            self.num_classes,
            activation=self.activation,
            pooling=self.pooling,
        )
