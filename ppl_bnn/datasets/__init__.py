"""Data of the field, read, checked, split and scaled as its papers do."""

from ppl_bnn.datasets.cifar import cifar10, cifar100
from ppl_bnn.datasets.corruptions import CORRUPTIONS, GREY_CORRUPTIONS, corrupt
from ppl_bnn.datasets.dataset import Dataset, Series
from ppl_bnn.datasets.elastic import elastic, elastic_mnist
from ppl_bnn.datasets.imdb import imdb
from ppl_bnn.datasets.labels import Labels, encode_labels
from ppl_bnn.datasets.mnist import fashion_mnist, mnist
from ppl_bnn.datasets.physionet import physionet2012
from ppl_bnn.datasets.scikit_learn import openml, scikit_learn
from ppl_bnn.datasets.splits import standard_split
from ppl_bnn.datasets.standardize import Standardized, Units, standardize
from ppl_bnn.datasets.uci import uci

__all__ = [
    "CORRUPTIONS",
    "GREY_CORRUPTIONS",
    "Dataset",
    "Labels",
    "Series",
    "Standardized",
    "Units",
    "cifar10",
    "cifar100",
    "corrupt",
    "elastic",
    "elastic_mnist",
    "encode_labels",
    "fashion_mnist",
    "imdb",
    "mnist",
    "openml",
    "physionet2012",
    "scikit_learn",
    "standard_split",
    "standardize",
    "uci",
]
