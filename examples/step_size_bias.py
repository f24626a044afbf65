"""The bias of stochastic gradients grows with the step as theory says, and R-hat is blind to it.

Bayesian linear regression, of which all is known: the posterior, the noise of a minibatch's
gradient, and with both the covariance at which SGLD settles at step size h,

    C = (I - h A) C (I - h A)' + 2 h I + h^2 E V,

A the Hessian of the potential and V the covariance of the gradient's noise, which depends on the
position and so, on average, on C. Printed are the variances of predictions, divided by those of
the posterior: measured, and as that equation has them. Steps are in units of 1 / the largest
eigenvalue of A; SGLD diverges at 2.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC
from real_data import load

import ppl_bnn

NOISE, PRIOR = 0.7, 1.0
STEPS = [0.4, 0.2, 0.1, 0.05]
KERNELS = {
    "SGLD": (ppl_bnn.SGLD, {}),
    "SGLD, control variates": (ppl_bnn.SGLD, {"gradient": "control_variates"}),
    "SGHMC": (ppl_bnn.SGHMC, {"momentum_decay": 0.9}),
}


def model(x, y=None):
    """Linear regression with known noise."""
    w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


def main(argv=None):
    """Run the study, print its table, draw the plot, and give the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="diabetes", help="diabetes, or a UCI set")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--num-samples", type=int, default=400, help="draws of each chain")
    parser.add_argument("--steps", type=float, nargs="+", default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder for the plot")
    args = parser.parse_args(argv)
    table = load(args.data)
    x, y, x_test = table.x_train, table.y_train, table.x_test
    hessian = x.T @ x / NOISE**2 + np.eye(x.shape[1]) / PRIOR**2
    posterior = np.linalg.inv(hessian)
    largest = np.linalg.eigvalsh(hessian)[-1]
    exact = np.einsum("ij,jk,ik->i", x_test, posterior, x_test)

    print(f"{args.data}, batches of {args.batch_size} of {len(x)} rows, {args.chains} chains\n")
    print("kernel                   step   variance ÷ posterior's   error   theory   R-hat")
    rows = []
    for name, (kernel, own) in KERNELS.items():
        for step in args.steps:
            h = step / largest
            options = {"batch_size": args.batch_size, "steps_per_draw": max(1, round(4 / step))}
            mcmc = MCMC(
                kernel(model, step_size=h, **options, **own),
                num_warmup=100,
                num_samples=args.num_samples,
                num_chains=args.chains,
                chain_method="vectorized",
                progress_bar=False,
            )
            mcmc.run(jax.random.key(args.seed), x, y)
            draws = np.asarray(mcmc.get_samples(group_by_chain=True)["w"], float)
            functions = draws @ x_test.T
            squares = (functions - functions.mean((0, 1))) ** 2
            ratios = (squares.mean(1) / exact).mean(-1)  # of each chain
            expected = None
            if kernel is ppl_bnn.SGLD:
                covariance = stationary(x, y, h, args.batch_size, to_anchor=bool(own))
                predicted = np.einsum("ij,jk,ik->i", x_test, covariance, x_test)
                expected = (predicted / exact).mean()
            rows.append(
                {
                    "kernel": name,
                    "step": step,
                    "ratio": ratios.mean(),
                    "error": ratios.std(ddof=1) / np.sqrt(len(ratios)),
                    "theory": expected,
                    "rhat": float(np.median(ppl_bnn.rhat(functions).values)),
                }
            )
            row = rows[-1]
            theory = "" if expected is None else f"{expected:.3f}"
            print(
                f"{name:22} {step:6.3f}   {row['ratio']:22.3f}   {row['error']:5.3f}   "
                f"{theory:>6}   {row['rhat']:5.3f}"
            )
    if args.out:
        plot(rows, Path(args.out))
    return rows


def stationary(x, y, h, batch_size, *, to_anchor):
    """Covariance at which SGLD settles, with rows drawn independently.

    A row's gradient is x (x'w - y) / noise^2; as a difference to an anchor at the mode it has the
    distance from the mode in place of the residual.
    """
    num_rows, size = x.shape
    hessian = x.T @ x / NOISE**2 + np.eye(size) / PRIOR**2
    mode = np.linalg.solve(hessian, x.T @ y / NOISE**2)
    residuals = np.zeros(num_rows) if to_anchor else x @ mode - y
    mean_gradient, second = x.T @ residuals / num_rows, x.T @ x / num_rows
    shrink = np.eye(size) - h * hessian
    covariance = np.linalg.inv(hessian)
    for _ in range(100_000):
        squares = residuals**2 + np.einsum("ij,jk,ik->i", x, covariance, x)
        about = np.outer(mean_gradient, mean_gradient) + second @ covariance @ second
        spread = (x * squares[:, None]).T @ x / num_rows - about
        noise = num_rows**2 / batch_size * spread / NOISE**4
        new = shrink @ covariance @ shrink + 2 * h * np.eye(size) + h**2 * noise
        if np.allclose(new, covariance, rtol=1e-9, atol=0):
            break
        covariance = new
    return covariance


def plot(rows, folder):
    """Bias against step size, with the theory as lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for name in KERNELS:
        own = [row for row in rows if row["kernel"] == name]
        steps, excess = [row["step"] for row in own], [row["ratio"] - 1 for row in own]
        errors = [2 * row["error"] for row in own]
        bars = axes.errorbar(steps, excess, errors, fmt="o", capsize=3, label=name)
        if own[0]["theory"] is not None:
            theory = [row["theory"] - 1 for row in own]
            axes.plot(steps, theory, color=bars[0].get_color(), label=f"{name}, theory")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="step size, in units of 1 / largest curvature",
        ylabel="variance of predictions ÷ posterior's, less 1",
    )
    axes.set_xticks(steps, [f"{step:g}" for step in steps])
    axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(folder / "step-size-bias.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
