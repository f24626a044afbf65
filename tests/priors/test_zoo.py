"""Every prior covers every parameter of every network of `ppl_bnn.models`."""

import inspect

import jax
import pytest
from flax import nnx
from numpyro import handlers

from ppl_bnn import models, priors
from ppl_bnn.random_module import random_module

# small networks of each kind; every parameter has the name that it has in a large one
NETWORKS = {
    "CNNLSTM": lambda: models.CNNLSTM(9, embedding_size=3, filters=2, hidden_size=4),
    "FilterResponseNorm": lambda: models.FilterResponseNorm(3, threshold=True),
    "LeNet": lambda: models.LeNet(width=2),
    "MLP": lambda: models.MLP(3, (4,), 2),
    "Rank1": lambda: models.rank1(models.MLP(3, (4,), 2)),
    "ResNet18": lambda: models.ResNet18(width=2),
    "ResNet20FRN": lambda: models.ResNet20FRN(width=2),
    "ResNet50": lambda: models.ResNet50(norm="group", width=32),
    "SequenceClassifier": lambda: models.SequenceClassifier(3, 4, 2, "gru"),
    "ThresholdedLinearUnit": lambda: models.ThresholdedLinearUnit(3),
    "VGG16": lambda: models.VGG16(norm="none", width=2, hidden_size=4),
    "WideResNet": lambda: models.WideResNet(10, 1, width=2),
}
BUILDERS = {
    "normal": {},
    "fan_in_normal": {},
    "laplace": {"fan_in": True},
    "logistic": {"fan_in": True},
    "student_t": {"df": 3.0, "fan_in": True},
    "cauchy": {"fan_in": True},
    "normal_mixture": {"fan_in": True},
    "hierarchical": {"fan_in": True},
    "horseshoe": {"fan_in": True},
    "regularized_horseshoe": {"fan_in": True},
}
ZOO = [
    name
    for name in models.__all__
    if inspect.isclass(getattr(models, name)) and issubclass(getattr(models, name), nnx.Module)
]


@pytest.mark.parametrize("name", ZOO)
def test_every_parameter_is_covered(name):
    assert name in NETWORKS, f"add a small {name} to NETWORKS of this file"
    net = nnx.eval_shape(NETWORKS[name])
    parameters = nnx.to_flat_state(nnx.state(net, nnx.Param))
    expected = {".".join(map(str, path)): leaf.get_value().shape for path, leaf in parameters}
    assert expected
    for builder, options in BUILDERS.items():
        centred = [{"centered": True}, {"centered": False}] if _is_hierarchical(builder) else [{}]
        for more in centred:
            sites = _shapes(net, priors.get(builder, **options, **more))
            found = {path: sites[f"net/{path}"] for path in expected}
            assert found == expected, (builder, more)


def test_every_builder_is_tried():
    assert set(BUILDERS) == {n for n in priors.__all__ if n[0].islower()} - {
        "check",
        "expand_to_event",
        "get",
    }


def _is_hierarchical(builder):
    return "centered" in inspect.signature(getattr(priors, builder)).parameters


def _shapes(net, prior):
    """Shapes of all sites; nothing is drawn or computed."""
    graph, state = nnx.split(net)

    def values(state):
        with handlers.trace() as trace, handlers.seed(rng_seed=0):
            random_module("net", nnx.merge(graph, state), prior)
        return {name: site["value"] for name, site in trace.items() if site["type"] != "plate"}

    return {name: value.shape for name, value in jax.eval_shape(values, state).items()}
