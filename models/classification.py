"""Ready model functions for labels: a network, a prior over its weights, and a link."""

from dataclasses import dataclass
from typing import Any

import numpyro
import numpyro.distributions as dist
from jaxtyping import Shaped

from ppl_bnn.models.outputs import (
    AnyArray,
    Inputs,
    check_targets,
    num_rows,
    outputs_of,
    squeeze_one,
)
from ppl_bnn.priors import Prior


def classification(net: Any, prior: Prior) -> "Classification":
    """Give a model of class labels: categorical, with the network's outputs as logits.

    Parameters
    ----------
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        Gives one logit for each class; two classes take two.
    prior : Distribution, dict or callable
        As in `ppl_bnn.random_module`.

    Returns
    -------
    callable
        ``model(x, y=None)``, with x of shape (N, ...), or a dictionary (or NamedTuple) of such for
        a network of several inputs, by the names of its arguments; and y integers of shape (N,),
        from 0 to the number of classes less one. Its sites are ``net/...`` and the observed ``y``,
        in the plate ``data``. In a call it raises a ValueError if `net` gives fewer than two
        outputs or y has another shape.
    """
    return Classification(net, prior)


def binary_classification(net: Any, prior: Prior) -> "BinaryClassification":
    """Give a model of yes-or-no labels: Bernoulli, with the network's outputs as logits.

    Parameters
    ----------
    net : flax.nnx.Module, flax.linen.Module or equinox.Module
        Gives one logit for each label; several labels of a row are independent given the weights
        (multi-label classification).
    prior : Distribution, dict or callable
        As in `ppl_bnn.random_module`.

    Returns
    -------
    callable
        ``model(x, y=None)``, with x as for `classification` and y of zeros and ones, integers of
        shape (N,), or (N, labels). Its sites are ``net/...`` and the observed ``y``, in the plate
        ``data``. In a call it raises a ValueError if y has another shape than the logits.
    """
    return BinaryClassification(net, prior)


# Compared by identity, since networks and priors hold arrays.
@dataclass(frozen=True, eq=False)
class Classification:
    """What `classification` returns."""

    net: Any
    prior: Prior

    def __call__(
        self, x: Inputs, y: Shaped[AnyArray, "..."] | None = None
    ) -> Shaped[AnyArray, " N"]:
        """Sample the weights and y."""
        logits = outputs_of(self.net, self.prior, x)
        if logits.shape[1] < 2:
            raise ValueError(
                "classification takes one output of the network for each class, at least 2, but "
                f"net gives {logits.shape[1]}; build it with two outputs for two classes, or take "
                "binary_classification"
            )
        if y is not None and y.shape != logits.shape[:1]:
            raise ValueError(
                f"y has shape {y.shape}, expected {logits.shape[:1]}: one integer label for each "
                "row of x (not one-hot)"
            )
        with numpyro.plate("data", num_rows(x)):
            return numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


@dataclass(frozen=True, eq=False)
class BinaryClassification:
    """What `binary_classification` returns."""

    net: Any
    prior: Prior

    def __call__(
        self, x: Inputs, y: Shaped[AnyArray, "..."] | None = None
    ) -> Shaped[AnyArray, "N *labels"]:
        """Sample the weights and y."""
        logits = squeeze_one(outputs_of(self.net, self.prior, x))
        check_targets(logits, y, "logits")
        distribution = dist.Bernoulli(logits=logits).to_event(logits.ndim - 1)
        with numpyro.plate("data", num_rows(x)):
            return numpyro.sample("y", distribution, obs=y)
