"""LSTM and GRU classifiers for series with gaps, such as clinical ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Shaped

from ppl_bnn.models.options import check_sizes, describe
from ppl_bnn.models.recurrent import last_state, make_cell

AnyArray = Array | np.ndarray


class SequenceClassifier(nnx.Module):
    """A recurrent cell over a series, and a dense layer on its last hidden state.

    Its parameters are ``cell.dense_i.kernel``, ``cell.dense_h.kernel``, one ``bias`` of these
    (``cell.dense_h.bias`` of an LSTM, ``cell.dense_i.bias`` of a GRU), ``dense.kernel`` and
    ``dense.bias``.

    Parameters
    ----------
    in_features : int
        Features of a step.
    hidden_size : int
        Size of the state.
    num_classes : int
        Number of outputs.
    cell : {"lstm", "gru"}
        As in `ppl_bnn.models.recurrent.make_cell`.
    missing_values : bool
        Whether values may be missing. Then the cell sees zero for a missing value and, as another
        `in_features` features, which ones were measured.
    static_features : int
        Features of a whole series (age, say), which the dense layer sees beside the hidden state.
    rngs : flax.nnx.Rngs, optional
        Keys for the initial weights, ``nnx.Rngs(0)`` by default.

    Raises
    ------
    ValueError
        If a size is not positive or there is no such cell; and in a call, if a shape or type is
        wrong, `observed` is given to a network without `missing_values`, or `static` and
        `static_features` do not agree.

    References
    ----------
    Indicators of what was measured, beside zeros, are those of Lipton, Kale and Wetzel (2016),
    *Directly modeling missing data in sequences with RNNs*.
    """

    checks_finite = ("x",)  # by `check_inputs`

    def __init__(
        self,
        in_features: int,
        hidden_size: int,
        num_classes: int,
        cell: str = "lstm",
        *,
        missing_values: bool = False,
        static_features: int = 0,
        rngs: nnx.Rngs | None = None,
    ):
        check_sizes(in_features=in_features, hidden_size=hidden_size, num_classes=num_classes)
        if static_features:
            check_sizes(static_features=static_features)
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.in_features, self.missing_values = in_features, missing_values
        self.static_features = static_features
        self.described = describe(
            "SequenceClassifier",
            in_features,
            hidden_size,
            num_classes,
            cell,
            missing_values=missing_values,
            static_features=static_features,
        )
        seen = 2 * in_features if missing_values else in_features
        self.cell = make_cell(cell, seen, hidden_size, rngs)
        self.dense = nnx.Linear(hidden_size + static_features, num_classes, rngs=rngs)

    def __call__(
        self,
        x: Shaped[AnyArray, "..."],
        mask: Shaped[AnyArray, "..."] | None = None,
        observed: Shaped[AnyArray, "..."] | None = None,
        static: Shaped[AnyArray, "..."] | None = None,
    ) -> Float[Array, "N K"]:
        """Give logits.

        Parameters
        ----------
        x : array
            Shape (N, steps, in_features).
        mask : array of bool, optional
            Shape (N, steps): True where there is a step. Elsewhere, at the end, the beginning or
            within, the state passes unchanged and x may hold anything. By default all are steps.
        observed : array of bool, optional
            Shape of x: True where a value was measured; elsewhere x may hold anything. By default
            all that are not NaN. Only with `missing_values`.
        static : array, optional
            Shape (N, static_features). With, and only with, `static_features`.

        Returns
        -------
        jax.Array
            Shape (N, num_classes).
        """
        if x.ndim != 3 or x.shape[-1] != self.in_features:
            raise ValueError(
                f"x has shape {x.shape}, but this SequenceClassifier takes (N, steps, "
                f"{self.in_features}): in_features={self.in_features} on the last axis"
            )
        _check_flags("mask", mask, x.shape[:2], "True where there is a step")
        _check_flags("observed", observed, x.shape, "True where a value was measured")
        if observed is not None and not self.missing_values:
            raise ValueError(
                "observed was given, but this SequenceClassifier was built without missing values; "
                "build it with missing_values=True"
            )
        self._check_static(static, x.shape[0])
        series: jax.Array = jnp.asarray(x)
        if self.missing_values:
            known = ~jnp.isnan(series) if observed is None else jnp.asarray(observed)
            series = jnp.where(known, series, 0)
            series = jnp.concatenate([series, known.astype(series.dtype)], axis=-1)
        steps = None if mask is None else jnp.asarray(mask)
        state = last_state(self.cell, series, steps)
        if static is not None:
            state = jnp.concatenate([state, jnp.asarray(static, state.dtype)], axis=-1)
        return self.dense(state)

    def _check_static(self, static: AnyArray | None, num_rows: int) -> None:
        got = 0 if static is None else static.shape[-1]
        if got != self.static_features or (static is not None and static.shape[:-1] != (num_rows,)):
            shape = None if static is None else static.shape
            raise ValueError(
                f"static has shape {shape}, but this SequenceClassifier was built with "
                f"static_features={self.static_features} and x has {num_rows} rows; build it with "
                "as many as the columns of static, or leave static out"
            )

    def check_inputs(
        self, x: Any, mask: Any = None, observed: Any = None, static: Any = None
    ) -> None:
        """Refuse values that are not finite where there is a step and a measurement.

        Raises
        ------
        ValueError
            Says how many there are and where the first is.
        """
        x = np.asarray(x)
        counts = ~np.isfinite(x)
        if self.missing_values and observed is None:
            counts &= ~np.isnan(x)
        if observed is not None:
            counts &= np.asarray(observed)
        if mask is not None:
            counts &= np.asarray(mask)[..., None]
        if counts.any():
            first = tuple(int(i) for i in np.argwhere(counts)[0])
            raise ValueError(
                f"x has {int(counts.sum())} values that are NaN or infinite, the first at index "
                f"{first}; mark missing values with `observed` (and missing_values=True) and "
                "missing steps with `mask`"
            )

    def __repr__(self) -> str:
        """Show how the network was built, without its arrays."""
        return self.described


def _check_flags(name: str, flags: AnyArray | None, shape: tuple[int, ...], meaning: str) -> None:
    if flags is None:
        return
    if flags.shape != shape:
        raise ValueError(f"{name} has shape {flags.shape}, expected {shape}: {meaning}")
    if flags.dtype != bool:
        raise ValueError(f"{name} must be bool, {meaning}, got {flags.dtype}; pass {name} > 0")
