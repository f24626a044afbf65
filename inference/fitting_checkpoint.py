"""Where a fit keeps its state on disk, to go on from after it was stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from ppl_bnn.inference.fitting_step import FitState, Saved
from ppl_bnn.inference.rank1_guide import Values


class Checkpoints:
    """A folder that holds the last state of one fit.

    Parameters
    ----------
    folder : str or Path
        Is made where it is not there.
    told : dict
        By what a fit is known, word by word.
    """

    def __init__(self, folder: Any, told: dict[str, str]):
        if not isinstance(folder, str | os.PathLike) or not str(folder):
            raise ValueError(f"`checkpoint` must be the path of a folder, got {folder!r}.")
        path = Path(folder).expanduser().resolve()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"`checkpoint` must be a folder, and {path} is none: {error}"
            ) from error
        self.path, self.told = path, told
        self.manager = ocp.CheckpointManager(
            path,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=1, create=True, enable_async_checkpointing=False
            ),
        )

    def restore(self, like: FitState, like_best: Values) -> Saved | None:
        """What was saved last, or None.

        Raises
        ------
        ValueError
            If the folder holds the state of another fit; says what differs.
        """
        number = self.manager.latest_step()
        if number is None:
            return None
        kept = self._read(number, told=ocp.args.JsonRestore())["told"]
        differ = [name for name, text in self.told.items() if kept["told"].get(name) != text]
        if set(differ) & {"model", "rng_key"}:  # which the guide holds, and begins by
            differ = [name for name in differ if name != "guide"]
        if differ:
            raise ValueError(
                f"`checkpoint` names {self.path}, which holds a fit with another "
                f"{', '.join(differ)}: give another folder, or remove this one to begin anew."
            )
        template = _leaves(like, like_best)
        history = {
            "losses": np.zeros(kept["num_losses"], np.float32),
            "validation": np.zeros((kept["num_validations"], 2)),
        }
        empty = {name: array for name, array in history.items() if not array.size}
        wanted = {name: array for name, array in (template | history).items() if name not in empty}
        found = self._read(number, state=ocp.args.StandardRestore(wanted))["state"] | empty
        treedef = jax.tree.structure((like, like_best))
        state, best = jax.tree.unflatten(treedef, [found[str(i)] for i in range(len(template))])
        losses, validation = (np.asarray(found[name]) for name in ("losses", "validation"))
        return Saved(state, losses, validation, kept["num_epochs"], best)

    def _read(self, number: int, **items: Any) -> Any:
        try:
            return self.manager.restore(number, args=ocp.args.Composite(**items))
        except Exception as error:
            raise ValueError(
                f"`checkpoint` names {self.path}, which holds step {number} of something that "
                f"cannot be read as a fit ({type(error).__name__}: {error}): give another folder, "
                "or remove this one to begin anew."
            ) from error

    def save(self, saved: Saved) -> None:
        """Keep this in place of what was kept before."""
        number = len(saved.losses)
        if number == self.manager.latest_step():
            return
        told = {
            "told": self.told,
            "num_losses": number,
            "num_validations": len(saved.validation),
            "num_epochs": saved.num_epochs,
        }
        history = {"losses": saved.losses.astype(np.float32), "validation": saved.validation}
        arrays = _leaves(saved.state, saved.best_params)
        arrays |= {name: array for name, array in history.items() if array.size}  # orbax's wish
        self.manager.save(
            number,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(arrays), told=ocp.args.JsonSave(told)
            ),
        )
        self.manager.wait_until_finished()

    def close(self) -> None:
        """Let go of the folder."""
        self.manager.close()


def _leaves(state: FitState, best_params: Values) -> dict[str, Any]:
    # by number, since the optimizer's own containers are not orbax's business
    return {str(i): leaf for i, leaf in enumerate(jax.tree.leaves((state, best_params)))}
