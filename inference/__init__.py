"""One inference engine a file, imported as ``ppl_bnn.inference``."""

if __name__ != "ppl_bnn.inference":
    raise ImportError(
        f"this package was imported as {__name__!r}; write `import ppl_bnn.inference` instead "
        "(from the root of a checkout the bare name would load every class a second time)"
    )

from ppl_bnn.inference.fitting import fit
from ppl_bnn.inference.fitting_result import Fit
from ppl_bnn.inference.hmc_kernel import HMC
from ppl_bnn.inference.rank1_elbo import Rank1ELBO
from ppl_bnn.inference.rank1_guide import AutoRank1
from ppl_bnn.inference.replica_exchange_kernel import ReplicaExchangeSGLD
from ppl_bnn.inference.sghmc_kernel import SGHMC
from ppl_bnn.inference.sgld_kernel import SGLD
from ppl_bnn.inference.sgmcmc_kernel import SGMCMC
from ppl_bnn.inference.sgnht_kernel import SGNHT

__all__ = [
    "HMC",
    "SGHMC",
    "SGLD",
    "SGMCMC",
    "SGNHT",
    "AutoRank1",
    "Fit",
    "Rank1ELBO",
    "ReplicaExchangeSGLD",
    "fit",
]
