"""Sample a Bayesian neural network on a real table, and judge the run by its functions.

Prints a table, writes a figure and a NetCDF file. ``make demo ARGS="--data concrete"`` takes a UCI
set from the folder that PPL_BNN_DATA names.
"""

import argparse
import time
from pathlib import Path

import arviz as az
import jax
import matplotlib
import numpy as np
from numpyro.infer import MCMC
from real_data import load

import ppl_bnn
from ppl_bnn import metrics, models, priors

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HIDDEN = 50
TRACED = 150  # draws of each chain in the traces
FUNCTIONS, WEIGHTS, CHAINS = "tab:blue", "tab:orange", plt.get_cmap("viridis")


def sample(args, table):
    """Four chains side by side; also the seconds that the draws after warm-up took."""
    net = models.MLP(table.x_train.shape[1], (HIDDEN,), 1)
    model = models.regression(net, priors.fan_in_normal(), noise="homoscedastic")
    mcmc = MCMC(
        ppl_bnn.HMC(model),
        num_warmup=args.num_warmup,
        num_samples=args.num_samples,
        num_chains=args.chains,
        chain_method="vectorized",
    )
    mcmc.warmup(jax.random.key(args.seed), table.x_train, table.y_train)
    start = time.perf_counter()
    mcmc.run(mcmc.post_warmup_state.rng_key, table.x_train, table.y_train)
    jax.block_until_ready(mcmc.get_samples())
    return mcmc, time.perf_counter() - start


def convergence(draws):
    """R-hat, bulk ESS and tail ESS of each quantity in arrays of shape (chain, draw, ...)."""
    merged = np.concatenate([np.reshape(a, (*a.shape[:2], -1)) for a in draws], axis=2)
    ess = {kind: az.ess({"x": merged}, method=kind)["x"].values for kind in ("bulk", "tail")}
    return ppl_bnn.rhat(merged).values, ess["bulk"], ess["tail"]


def print_table(mcmc, seconds, table, prediction, functions, weights):
    """Predictions in original units, the sampler, and convergence of functions beside weights."""
    stats = mcmc.get_extra_fields()
    lower, upper = prediction.quantiles
    log_density = table.log_density_in_units(prediction.log_prob(table.y_test).mean())
    gradients = np.sum(stats["num_steps"])
    rows = [
        ("Test RMSE", f"{table.y_std * metrics.rmse(prediction.mean, table.y_test):.4g}"),
        ("Test log predictive density (mixture)", f"{log_density:.3f}"),
        (
            "Coverage of 90 % predictive intervals",
            f"{metrics.interval_coverage(lower, upper, table.y_test):.0%}",
        ),
        ("Mean acceptance probability", f"{np.mean(stats['accept_prob']):.2f}"),
        ("Leapfrog steps per transition", f"{np.mean(stats['num_steps']):.0f}"),
        ("Gradients per second, all chains", f"{gradients / seconds:,.0f}"),
    ]
    for name, value in rows:
        print(f"{name:40s}{value:>10s}")
    print("\nConvergence                    R-hat           bulk ESS       tail ESS")
    print("(R-hat: rank, split)       median     max    median   min   median   min")
    for name, (rhat, bulk, tail) in (("test predictions", functions), ("weights", weights)):
        print(
            f"{len(rhat):6,d} {name:18s}{np.median(rhat):8.3f}{rhat.max():8.3f}"
            f"{np.median(bulk):10.0f}{bulk.min():6.0f}{np.median(tail):9.0f}{tail.min():6.0f}"
        )
    print()


def plot(path, title, table, prediction, draws, rhat_functions, rhat_weights):
    """Predictive intervals; R-hat of functions beside weights; traces of three predictions."""
    figure = plt.figure(figsize=(12, 7), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(2, 6)

    axes = figure.add_subplot(grid[0, :4])
    order = np.argsort(prediction.mean)
    lower, upper = table.in_units(prediction.quantiles[:, order])
    y, rank = table.in_units(table.y_test[order]), np.arange(len(order))
    axes.vlines(rank, lower, upper, color=FUNCTIONS, alpha=0.35, lw=3, label="90 % interval")
    axes.plot(rank, table.in_units(prediction.mean[order]), color=FUNCTIONS, label="mean")
    is_in = (lower <= y) & (y <= upper)
    axes.plot(rank[is_in], y[is_in], "o", ms=3, color="black", label="observed")
    axes.plot(rank[~is_in], y[~is_in], "x", ms=6, color="tab:red", label="observed, outside")
    axes.set(xlabel="test points, by predicted mean", ylabel="target", xlim=(-1, len(order)))
    axes.set_title("Predictions on the test set")
    axes.legend(loc="upper left", fontsize="small")

    axes = figure.add_subplot(grid[0, 4:])
    top = max(1.05, rhat_functions.max(), rhat_weights.max())
    bins = np.linspace(min(1.0, rhat_functions.min(), rhat_weights.min()), top, 41)
    for name, rhat, color in (
        ("weights", rhat_weights, WEIGHTS),
        ("functions", rhat_functions, FUNCTIONS),
    ):
        share = np.full(len(rhat), 100 / len(rhat))
        label = f"{name} ({len(rhat):,}), max {rhat.max():.3f}"
        axes.hist(rhat, bins, weights=share, color=color, alpha=0.6, label=label)
    axes.axvline(1.01, color="black", lw=1, ls="--", label="1.01")
    axes.set(
        xlabel="R-hat (rank, split)",
        ylabel="share, % (log scale)",
        yscale="log",
        title="Convergence: R-hat",
    )
    axes.legend(loc="upper right", fontsize="small")

    for panel, quantile in enumerate((0.1, 0.5, 0.9)):
        point = order[int(quantile * (len(order) - 1))]
        axes = figure.add_subplot(grid[1, 2 * panel : 2 * panel + 2])
        for chain, values in enumerate(table.in_units(draws[:, :, point])):
            color = CHAINS(0.9 * chain / max(len(draws) - 1, 1))
            axes.plot(values[:TRACED], lw=0.8, color=color)
        axes.set(xlabel="draw (a colour is a chain)", title=f"Trace at test point {point}")
        if panel == 0:
            axes.set_ylabel("predicted mean of the target")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(argv=None):
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="diabetes", help="diabetes, or a UCI set")
    parser.add_argument("--num-warmup", type=int, default=200, help="transitions of each chain")
    parser.add_argument("--num-samples", type=int, default=500, help="draws of each chain")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder")
    args = parser.parse_args(argv)
    table = load(args.data)
    size = f"{table.x_train.shape[0]} training rows, {len(table.y_test)} test rows"
    print(f"{args.data}: {size}, {table.x_train.shape[1]} features")
    print(
        f"One layer of {HIDDEN} units; HMC on all rows, {args.chains} chains x {args.num_samples} "
        f"draws after {args.num_warmup} of warm-up\n"
    )
    mcmc, seconds = sample(args, table)

    prediction = ppl_bnn.predict(mcmc, table.x_test, quantiles=(0.05, 0.95))
    functions = ppl_bnn.function_space(mcmc, table.x_test)["posterior"]["mean"].values
    weights = [
        draws
        for name, draws in mcmc.get_samples(group_by_chain=True).items()
        if name.startswith("net/")
    ]
    of_functions, of_weights = convergence([functions]), convergence(weights)
    print()
    print_table(mcmc, seconds, table, prediction, of_functions, of_weights)
    print(ppl_bnn.diagnose(mcmc, table.x_test))

    args.out.mkdir(parents=True, exist_ok=True)
    figure, file = args.out / f"{args.data}.png", args.out / f"{args.data}.nc"
    title = f"{args.data}: {args.chains} chains x {args.num_samples} draws of HMC"
    plot(figure, title, table, prediction, functions, of_functions[0], of_weights[0])
    data = ppl_bnn.to_arviz(mcmc, table.x_train, table.y_train, x_test=table.x_test)
    data.to_netcdf(str(file))
    stored = az.from_netcdf(str(file))["predictions"]["mean"].values
    np.testing.assert_array_equal(stored, functions)
    print(f"\nWrote {figure} and {file}; arviz.from_netcdf reads the latter back.")


if __name__ == "__main__":
    main()
