"""What all kernels for NumPyro's `MCMC` share: a model, and the posterior on the data of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from numpyro.infer.mcmc import MCMCKernel

from ppl_bnn.rows import concretely
from ppl_bnn.target import Target


class ModelKernel(MCMCKernel):
    """A kernel that samples the latent sites of a model, and finds its data itself.

    A subclass says how a `Target` is made (`_make_target`) and looked at (`_look_at`), and keeps
    its options in `settings`.
    """

    sample_field = "z"
    # MCMC calls `init` again on a resumed run unless this is set; `sample` finds its data itself
    _sample_fn = True
    settings: Any

    def __init__(self, model: Callable):
        if not callable(model):
            raise ValueError(f"`model` must be a NumPyro model, a function, got {model!r}.")
        self._model = model
        self._target: Target | None = None

    @property
    def model(self) -> Callable:
        """The user's model."""
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_target": None}  # placed data stay behind

    def _make_target(self, args: tuple, kwargs: dict) -> Target:
        raise NotImplementedError

    def _look_at(self, target: Target) -> None:
        """Warn of what is odd about a model, once for its data."""

    def _target_for(self, args: tuple, kwargs: dict | None) -> Target:
        """The posterior on these data, made once for the same arrays."""
        kwargs = kwargs or {}
        if self._target is not None and self._target.data.is_from(args, kwargs):
            self._target.data.check_unchanged()
            return self._target
        if self.settings.mesh is not None and jax.sharding.get_abstract_mesh().manual_axes:
            raise ValueError(
                "`mesh` does not go with chain_method='parallel', which gives each chain one "
                "device. Use chain_method='vectorized', with `ppl_bnn.mesh(chains=...)` to spread "
                "chains over devices."
            )
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return self._make_target(args, kwargs)
        with concretely():
            self._target = self._make_target(args, kwargs)
        self._look_at(self._target)
        return self._target

    def postprocess_fn(self, model_args: tuple, model_kwargs: dict | None) -> Callable:
        """Function from an unconstrained position to the sites' values, deterministic ones too."""
        target = self._target_for(model_args, model_kwargs)
        return lambda z: target.constrain(z, target.data.read())
