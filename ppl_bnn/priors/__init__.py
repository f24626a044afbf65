"""Priors over weights: callables ``(path, shape)`` that `ppl_bnn.random_module` takes as `prior`.

To treat some parameters in another way, put priors into a dict by path::

    prior = {"norm.scale": dist.Normal(1, 0.1), "*": priors.fan_in_normal()}

`check` shows what a model believes before it sees data.
"""

from ppl_bnn.priors.base import Prior, PriorFunction, expand_to_event
from ppl_bnn.priors.by_name import get
from ppl_bnn.priors.independent import (
    cauchy,
    fan_in_normal,
    laplace,
    logistic,
    normal,
    normal_mixture,
    student_t,
)
from ppl_bnn.priors.predictive import check
from ppl_bnn.priors.scale_mixtures import hierarchical, horseshoe, regularized_horseshoe
from ppl_bnn.priors.verdict import PriorCheck

__all__ = [
    "Prior",
    "PriorCheck",
    "PriorFunction",
    "cauchy",
    "check",
    "expand_to_event",
    "fan_in_normal",
    "get",
    "hierarchical",
    "horseshoe",
    "laplace",
    "logistic",
    "normal",
    "normal_mixture",
    "regularized_horseshoe",
    "student_t",
]
