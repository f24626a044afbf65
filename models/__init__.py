"""Networks and ready-made model functions, imported as ``ppl_bnn.models``."""

if __name__ != "ppl_bnn.models":
    raise ImportError(
        f"this package was imported as {__name__!r}; write `import ppl_bnn.models` instead "
        "(from the root of a checkout the bare name would load every class a second time)"
    )

from ppl_bnn.models.likelihoods import classification, regression
from ppl_bnn.models.mlp import MLP

__all__ = ["MLP", "classification", "regression"]
