"""Networks and ready-made model functions, imported as ``ppl_bnn.models``."""

if __name__ != "ppl_bnn.models":
    raise ImportError(
        f"this package was imported as {__name__!r}; write `import ppl_bnn.models` instead "
        "(from the root of a checkout the bare name would load every class a second time)"
    )

from ppl_bnn.models.classification import binary_classification, classification
from ppl_bnn.models.cnn_lstm import CNNLSTM
from ppl_bnn.models.convolution import conv_general_dilated
from ppl_bnn.models.lenet import LeNet
from ppl_bnn.models.mlp import MLP
from ppl_bnn.models.normalization import FilterResponseNorm, ThresholdedLinearUnit
from ppl_bnn.models.rank1 import Rank1, Rank1Layers, rank1, rank1_layers
from ppl_bnn.models.regression import count_regression, regression
from ppl_bnn.models.resnet import ResNet18, ResNet20FRN, ResNet50
from ppl_bnn.models.sequence import SequenceClassifier
from ppl_bnn.models.vgg import VGG16
from ppl_bnn.models.wide_resnet import WideResNet

__all__ = [
    "CNNLSTM",
    "MLP",
    "VGG16",
    "FilterResponseNorm",
    "LeNet",
    "Rank1",
    "Rank1Layers",
    "ResNet18",
    "ResNet20FRN",
    "ResNet50",
    "SequenceClassifier",
    "ThresholdedLinearUnit",
    "WideResNet",
    "binary_classification",
    "classification",
    "conv_general_dilated",
    "count_regression",
    "rank1",
    "rank1_layers",
    "regression",
]
