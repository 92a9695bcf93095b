"""`strata bench` of the learned scheduler; the bodies are in `strata.evaluation.bench`."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import POSITIVE, Finite, Whole, choice
from strata.errors import need

_TABLES: Final = 16
"""Fewest environments: as many as the tables of a measurement."""


@click.command()
@click.option("--envs", type=Whole(min=_TABLES), default=512, help="Environments played at once.")
@click.option("--updates", type=POSITIVE, default=6, help="Updates timed, after one to warm up.")
@click.option(
    "--device",
    type=choice("auto", "cpu", "cuda"),
    default="auto",
    help="Also measure on a CUDA device: if there is one (auto), or fail without one (cuda).",
)
@output_option
def learn(envs: int, updates: int, device: str, output: str) -> None:
    """Measure PPO steps a second: playing and learning, 2 epochs of 4 minibatches on 32 steps.

    The same random tables for all. Stable-Baselines3, if it is installed, runs our network (same sizes, epochs and
    minibatches), then its own perceptron with as many weights. `simulated fleets` are worlds of several jobs in
    place of tables. CPU rows are per second of CPU time on one thread; CUDA rows per second of wall time, our
    environments on the device and theirs on the CPU.

    \b
    strata bench learn --updates 10
    """
    from strata.cli.learn import device_of

    need("torch", extra="train")
    from strata.evaluation.bench import learn as bench

    devices = list(dict.fromkeys(["cpu", device_of(device)]))
    data = bench.measure(envs=envs, updates=updates, devices=devices, progress=progress)
    emit(data, output, bench.show(data))


@click.command()
@click.argument("scenarios", type=click.Path(), metavar="SCENARIOS.json")
@click.option("--policy", type=click.Path(), help="An exported policy instead of the bundled one.")
@click.option("--seeds/--no-seeds", default=True, help="Also run the policies of the other training seeds.")
@output_option
def replan(scenarios: str, policy: str | None, seeds: bool, output: str) -> None:
    """Re-plan under Markov links: SCENARIOS.json holds reward tables, chains and the paths to run.

    One policy for all scenarios. It sees the rewards now, each plan's expected reward 1, 2, 4 and 8 steps
    ahead, the switch cost, the plan in use and its links; no value function. hysteresis (margin 0.5) and mpc
    (2 steps) are fixed rules; mpc_tuned and hysteresis_tuned take their best setting per scenario with hindsight;
    vi is exact, clairvoyant knows the future. Figures are rewards a step; a gap is what is missed of vi.

    \b
    strata bench replan scenarios.json --policy policy.onnx
    """
    from strata.evaluation.bench import replan as bench
    from strata.training.hi_ppo.policy import load_policy, other_seeds

    chosen = load_policy(policy)
    for note in chosen.notes:
        click.echo(f"note: {note}", err=True)
    others = other_seeds() if seeds and policy is None else []
    data = bench.measure(scenarios, chosen, others=others, progress=progress)
    emit(data, output, bench.show(data))


@click.command()
@click.option("--seconds", default=60.0, type=Finite(min=0), help="How long to train the ratios.")
@click.option("--fleets", default=24, type=POSITIVE, help="Number of fleets to compare on.")
@click.option("--seed", default=0, help="Random seed of training; the fleets to compare on stay the same.")
@output_option
def heads(seconds: float, fleets: int, seed: int, output: str) -> None:
    """Compare two actions for the agent between domains: allocation ratios, and a choice of plans.

    Ratios come from a Dirichlet head trained here by PPO, and become the best pipeline or
    data-parallel plan that follows them. Compared on random fleets of 2 to 6 domains that training never saw,
    with the bundled jobs, for the shortest step, with the bundled policy on candidate plans and the exact search.
    A fleet counts where some domain alone can run the job. regret is T / T_exact - 1; R_eff is
    (T_base - T) / T_base against the best single domain; no plan counts as T = 2 T_base. The exact plan's ratios
    are given: what they lose is lost by expressing a plan as ratios. Needs torch.

    \b
    strata bench heads --seconds 10
    """
    from strata.evaluation.bench import heads as bench

    data = bench.measure(seconds=seconds, fleets=fleets, seed=seed, progress=progress)
    emit(data, output, bench.show(data))


@click.command()
@click.option("--envs", default=1024, type=POSITIVE, help="Environments at once.")
@click.option("--instances", default=16, type=POSITIVE, help="Number of fleets in the pool.")
@click.option("--steps", default=40, type=Whole(min=2), help="Number of steps timed.")
@click.option("--seed", default=0, help="Random seed of the fleets and links.")
@output_option
def world(envs: int, instances: int, steps: int, seed: int, output: str) -> None:
    """Time the simulated world without a policy: links, loads, jobs, rewards; and what a policy looks at.

    Steps of one environment a CPU second, on one core. `raw state` adds bandwidth, latency, utilisation, memory
    and queues as arrays; `options` the value of every option now and 1, 2, 4 and 8 steps ahead instead.

    \b
    strata bench world --envs 64
    """
    from strata.evaluation.bench import world as bench

    data = bench.measure(envs=envs, instances=instances, steps=steps, seed=seed, progress=progress)
    emit(data, output, bench.show(data))
