"""The loop of `fit`: steps, a bar, validation and a checkpoint after each epoch, clean ends."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm.auto import tqdm

from ppl_bnn.inference.fitting_result import Fit
from ppl_bnn.inference.fitting_score import Score
from ppl_bnn.inference.fitting_step import Problem, Saved
from ppl_bnn.inference.fitting_stream import Arguments, IterableStream, RowStream
from ppl_bnn.interrupts import stop_requests
from ppl_bnn.mesh import DATA, size
from ppl_bnn.rows import is_array

if TYPE_CHECKING:  # it imports orbax, which takes a second
    from ppl_bnn.inference.fitting_checkpoint import Checkpoints

SECONDS_BETWEEN_CHECKPOINTS = 60.0
WATCH = 50  # steps between looks at the loss, each of which waits for the device
VALIDATION_SAMPLES = 4  # of each component


class Loop:
    """A fit under way.

    Parameters
    ----------
    problem, stream, rng_key
        What is fitted, to what, with which key for all steps.
    others : dict
        Keyword arguments of the model that hold no rows.
    score, checkpoints, mesh
        As `fit` has them, each of which may be None.
    result : callable
        Makes a `Fit` of parameters, losses, validation, failed_at, stopped and best parameters.
    """

    def __init__(
        self,
        problem: Problem,
        stream: RowStream | IterableStream,
        rng_key: jax.Array,
        others: dict[str, Any],
        score: Score | None,
        checkpoints: Checkpoints | None,
        mesh: Mesh | None,
        result: Callable[..., Fit],
    ):
        self.problem, self.stream, self.rng_key = problem, stream, rng_key
        self.score, self.checkpoints, self.mesh = score, checkpoints, mesh
        # placed once, and not in every step
        self.others = jax.tree.map(
            lambda leaf: self._replicate(jnp.asarray(leaf)) if is_array(leaf) else leaf, others
        )
        self.result = result
        self.step = jax.jit(problem.step)
        # what cannot be read twice is looked at in every step, to be there if one fails
        self.watch = 1 if isinstance(stream, IterableStream) else WATCH
        self.recent: list[jax.Array] = []
        self.kept_at = -np.inf  # on the clock

    def run(self, saved: Saved, num_epochs: int, progress_bar: bool) -> Fit:
        """Take all steps that are left from the saved state on."""
        self.saved, self.state = saved, self._replicate(saved.state)
        total = self.stream.num_steps(num_epochs)
        stopped = None
        with (
            tqdm(
                total=total, initial=self.num_steps, desc="fit", disable=not progress_bar
            ) as progress,
            stop_requests() as is_asked_to_stop,
        ):
            progress.set_postfix_str("compiling")
            try:
                if saved.num_epochs < num_epochs:
                    stopped = self._steps(num_epochs, progress, is_asked_to_stop)
            except Exception as error:
                if not self.num_steps:
                    raise
                stopped = f"{type(error).__name__}: {error}"
        if int(self.state.failed_at) >= 0:
            return self._failed()
        self._keep()
        if stopped:
            kept = "" if self.checkpoints is None else ", and the same call goes on from there"
            warnings.warn(
                f"the fit stops after {self.num_steps} steps, before the end: {stopped}. What "
                f"there is is returned{kept}.",
                RuntimeWarning,
                stacklevel=3,
            )
        return self._finish(None, stopped)

    def _steps(
        self, num_epochs: int, progress: tqdm, is_asked_to_stop: Callable[[], bool]
    ) -> str | None:
        """Step after step; gives why it stopped before the last."""
        for batch in self.stream.from_step(self.num_steps):
            self.batch = batch.arguments
            self._take()
            if batch.ends_epoch or len(self.recent) % self.watch == 0:
                if int(self.state.failed_at) >= 0:
                    return None
                if batch.ends_epoch:
                    self._end_epoch()
                self._show(progress)
            if self.saved.num_epochs >= num_epochs:
                return None
            if is_asked_to_stop():
                return "it was interrupted"
        return "there were no more batches"

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return len(self.saved.losses) + len(self.recent)

    def _take(self) -> None:
        self.state, loss = self.step(self.state, self.rng_key, self._place(self.batch))
        self.recent.append(loss)
        if self.num_steps == 1 and int(self.state.failed_at) >= 0:
            self.recent = []
            raise ValueError(
                f"the fit cannot start: {self._explain()}. Begin elsewhere (the guide's initial "
                "values), narrow the priors, or check the scale of inputs and targets."
            )

    def _explain(self) -> str:
        return self.problem.explain(self.state, self.rng_key, self._place(self.batch))

    def _fold(self) -> None:
        """Move the losses of late from the device to what is to be saved."""
        losses = np.concatenate([self.saved.losses, np.asarray(jnp.asarray(self.recent))])
        self.saved = self.saved._replace(state=self.state, losses=losses.astype(np.float32))
        self.recent = []

    def _end_epoch(self) -> None:
        self._fold()
        self.saved = self.saved._replace(num_epochs=self.saved.num_epochs + 1)
        params = self.problem.constrain(self.state.params)
        if self.score is None:
            self.saved = self.saved._replace(best_params=params)
        else:
            fit = self.result(params, self.saved.losses, self.saved.validation, None, None, None)
            found = self.score(fit.draws(VALIDATION_SAMPLES))
            before = self.saved.validation
            known = before[~np.isnan(before[:, 1]), 1]
            if not len(before) or found < np.min(known, initial=np.inf):
                self.saved = self.saved._replace(best_params=params)
            validation = np.concatenate([before, [[len(self.saved.losses), found]]])
            self.saved = self.saved._replace(validation=validation)
        if time.monotonic() - self.kept_at > SECONDS_BETWEEN_CHECKPOINTS:
            self._keep()

    def _keep(self) -> None:
        if self.recent:
            self._fold()
        if self.checkpoints is not None:
            try:
                self.checkpoints.save(self.saved)
            except Exception as error:
                self.checkpoints = None
                warnings.warn(
                    f"the state cannot be kept any more: {type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=5,
                )
            self.kept_at = time.monotonic()

    def _show(self, progress: tqdm) -> None:
        last = self.recent[-1] if self.recent else self.saved.losses[-1]
        shown = {"loss": f"{float(last):.4g}"}
        if len(self.saved.validation):
            shown["validation"] = f"{self.saved.validation[-1, 1]:.4g}"
        progress.set_postfix(shown, refresh=False)
        progress.update(self.num_steps - progress.n)

    def _failed(self) -> Fit:
        """The fit up to the step that would have made something not finite."""
        number = int(self.state.failed_at)
        if isinstance(self.stream, RowStream):
            self.batch = next(self.stream.from_step(number)).arguments
        why = self._explain()
        if self.recent:
            self._fold()
        self.saved = self.saved._replace(losses=self.saved.losses[:number])
        what = f"step {number} would give values that are not finite: {why}"
        warnings.warn(
            f"{what}. The fit stops before it and returns what there is. Lower the step size or "
            "clip gradients; for heavy-tailed factors, give `models.rank1(net, clip=10.0)`.",
            RuntimeWarning,
            stacklevel=4,
        )
        return self._finish(number, what)

    def _finish(self, failed_at: int | None, stopped: str | None) -> Fit:
        if self.recent:
            self._fold()
        best = self.saved.best_params if len(self.saved.validation) else None
        params = self.problem.constrain(self.state.params)
        losses, validation = self.saved.losses, self.saved.validation
        return self.result(params, losses, validation, failed_at, stopped, best)

    def _place(self, arguments: Arguments) -> list[jax.Array]:
        """The arrays, on the devices: rows divided among them, all else whole on each."""
        leaves, treedef = jax.tree.flatten((arguments[0], arguments[1] | self.others))
        rows = self.problem.rows
        if treedef != rows.treedef:
            raise ValueError(f"a batch came as {treedef}, after {rows.treedef}")
        pairs = [pair for pair in zip(leaves, rows.is_row, strict=True) if is_array(pair[0])]
        if self.mesh is None:
            return [jnp.asarray(leaf) for leaf, _ in pairs]
        devices = size(self.mesh, DATA)
        num_rows = next(len(leaf) for leaf, is_row in pairs if is_row)
        if num_rows % devices:
            raise ValueError(
                f"a batch of {num_rows} rows does not divide among the {devices} devices of `mesh`"
            )
        divided = NamedSharding(self.mesh, PartitionSpec(DATA))
        return [
            jax.device_put(leaf, divided) if is_row else self._replicate(leaf)
            for leaf, is_row in pairs
        ]

    def _replicate(self, tree: Any) -> Any:
        if self.mesh is None:
            return tree
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))
