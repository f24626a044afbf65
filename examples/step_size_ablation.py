"""Without a Metropolis test too large a step ruins predictions, and acceptance shows it first.

The step-size study of Izmailov et al. (2021, appendix) on a small table. Chains begin at posterior
draws, make a few transitions with steps 1, 5, 10, ... times a start of 0.05 of the adapted step,
and keep every end point. "Acceptance" is what a Metropolis test would have accepted: it falls from
the first row on, the test log-likelihood only near the integrator's stability limit. Beyond that
limit trajectories overflow: such end points are "not finite" and the chain stays where it was, so
that the last row shows little more than the draws that it began with.
"""

import argparse

import jax
import numpy as np
from numpyro.infer import MCMC
from real_data import load

import ppl_bnn
from ppl_bnn import metrics, models, priors

START = 0.05  # of the adapted step


def main(argv=None):
    """Run the study, print its table and give its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="concrete", help="diabetes, or a UCI set")
    parser.add_argument("--num-warmup", type=int, default=100, help="to adapt the step")
    parser.add_argument("--num-samples", type=int, default=30, help="transitions for each step")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--multiples", type=int, nargs="+", default=[1, 5, 10, 20, 30, 50])
    args = parser.parse_args(argv)
    table = load(args.data)
    net = models.MLP(table.x_train.shape[1], (50,), 1)
    model = models.regression(net, priors.fan_in_normal())
    key_adapt, key_study = jax.random.split(jax.random.key(args.seed))

    def sample(key, kernel, num_warmup, num_samples, init_params=None):
        mcmc = MCMC(
            kernel,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=args.chains,
            chain_method="vectorized",
            progress_bar=num_warmup > 0,
        )
        mcmc.run(key, table.x_train, table.y_train, init_params=init_params)
        return mcmc

    adapted = sample(key_adapt, ppl_bnn.HMC(model), args.num_warmup, 10)
    adapted_step = float(adapted.get_extra_fields()["step_size"][-1])
    print(f"\n{args.data}: adapted step {adapted_step:.3g} prior standard deviations")
    print(
        f"{args.chains} chains x {args.num_samples} transitions without a Metropolis test, each "
        "from a posterior draw\n"
    )
    print("    step   x start   leapfrog   acceptance   divergent   not finite   RMSE   test LL")
    rows = []
    for multiple in args.multiples:
        step = START * multiple * adapted_step
        kernel = ppl_bnn.HMC(model, step_size=step, adapt_step_size=False, metropolis=False)
        mcmc = sample(key_study, kernel, 0, args.num_samples, adapted.last_state.z)
        stats = mcmc.get_extra_fields()
        prediction = ppl_bnn.predict(mcmc, table.x_test)
        log_density = prediction.log_prob(table.y_test).mean()
        row = {
            "step": step,
            "multiple": multiple,
            "leapfrog": stats["num_steps"].mean(),
            "acceptance": stats["accept_prob"].mean(),
            "divergent": stats["diverging"].mean(),
            "not_finite": 1 - stats["is_accepted"].mean(),
            "rmse": metrics.rmse(prediction.mean, table.y_test) * table.y_std,
            "log_likelihood": table.log_density_in_units(log_density),
        }
        rows.append({name: np.asarray(value).item() for name, value in row.items()})
        print(
            "{step:8.2e} {multiple:9d} {leapfrog:10.0f} {acceptance:12.4f} {divergent:11.1%} "
            "{not_finite:12.1%} {rmse:6.3g} {log_likelihood:9.3f}".format(**rows[-1])
        )
    return rows


if __name__ == "__main__":
    main()
