"""`strata plan train`: the ranked plans of a job on a fleet, what they are compared with, and the reasons."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.planning import remember, time_limit_s
from strata.errors import OutOfTime, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.fleet.fleet import Fleet
    from strata.training.plan.exact.search import Evaluated
    from strata.training.plan.planner import Answer
    from strata.workload.job import TrainingJob

    Planner = Callable[[Fleet, TrainingJob], Answer]


def _weights(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if len(weights) != 3 or min(weights) < 0 or not sum(weights) > 0 or max(weights) == float("inf"):
        raise click.BadParameter("three numbers >= 0, for example 0.4,0.3,0.3 (time, utilisation, money)")
    return weights


@click.command()
@click.argument("fleet")
@click.argument("job")
@click.option("--top", default=5, show_default=True, type=click.IntRange(min=1), help="Plans to show.")
@click.option(
    "--minimize", type=click.Choice(["time", "cost", "reward", "tchebycheff"]), help="Instead of the job's goal."
)
@click.option("--weights", callback=_weights, metavar="A,B,C", help="Of reward and tchebycheff; alone: of reward.")
@click.option("--pareto", is_flag=True, help="Add the exact front of time, utilisation and money (8 domains).")
@click.option("--time-limit", default="30s", show_default=True, help="Stop searching after so long.")
@click.option(
    "--planner",
    type=click.Choice(["exact", "hi-ppo"]),
    default="exact",
    show_default=True,
    help="The exact search, or the learned policy (no proof, many domains).",
)
@click.option("--policy", type=click.Path(), help="A policy file for hi-ppo instead of the bundled one.")
@click.option(
    "--in-use", "in_use", type=click.Path(), help="With hi-ppo: the plan file the job runs now; keep or switch."
)
@click.option("--seed", default=0, show_default=True, help="Of the random baselines.")
@click.option("--save", type=click.Path(dir_okay=False), help="Also write the answer, as JSON, to this file.")
@output_option
def train(
    fleet: str, job: str, top: int, minimize: str | None, weights: tuple[float, float, float] | None, pareto: bool,
    time_limit: str, planner: str, policy: str | None, in_use: str | None, seed: int, save: str | None,
    output: str,
) -> int:  # fmt: skip
    """Plan a training JOB on a FLEET: files, or names of bundled ones.

    \b
    strata plan train aws10 llama-3.1-70b
    strata plan train fleet.yaml job.yaml --minimize cost -o json
    strata plan train aws10 llama-3.1-8b --planner hi-ppo --in-use plan.json

    Exits 3 where no plan fits (the reasons say what would help), 6 where the time limit passed first.
    """
    from strata import units
    from strata.fleet.schema import load_fleet
    from strata.workload.schema import load_job

    limit_s = time_limit_s(time_limit)
    asked = _asked(load_job(job), minimize, weights)
    if planner == "exact" and (policy or in_use):
        raise UsageError("--policy and --in-use are for the learned policy", hint="--planner hi-ppo")
    learned = _learned(policy, in_use) if planner == "hi-ppo" else None
    data, stopped = planned(load_fleet(fleet), asked, {"fleet": fleet, "job": job}, top=top, seed=seed,
                            limit_s=limit_s, pareto=pareto, learned=learned)  # fmt: skip
    if not data["plans"] and stopped == "time":
        raise OutOfTime(
            f"no plan within {units.show_time(limit_s)}",
            hint=f"--time-limit {units.show_time(max(10, 4 * limit_s))}",
        )
    if save:
        from strata.files import write_json

        write_json(save, data)
    remember("training", data)
    if output == "table":
        from strata.cli.plan_table import show_answer

        data["inputs"]["saved"] = save or ""
    emit(data, output, lambda console: show_answer(console, data))
    if stopped == "interrupt":
        return 130
    return 0 if data["plans"] else 3


def planned(
    fleet: Any,
    job: TrainingJob,
    inputs: dict[str, str],
    *,
    top: int,
    seed: int,
    limit_s: float,
    pareto: bool = False,
    learned: Planner | None = None,
) -> tuple[dict[str, Any], str]:
    """Return the answer as data, and what stopped the search: "", "time" or "interrupt".

    `learned` plans instead of the exact search.
    """
    import numpy as np

    from strata.training.plan.baselines import BASELINES
    from strata.training.plan.baselines.context import Context
    from strata.training.plan.exact.pareto import front
    from strata.training.plan.planner import plan_training
    from strata.training.plan.report import answer_dict

    with progress("planning"):
        if learned is not None:
            answer = learned(fleet, job)
        else:
            answer = plan_training(fleet, job, clock=time.perf_counter, time_limit_s=limit_s, rank=top, seed=seed)
    stopped = "interrupt" if answer.found.interrupted else "time" if answer.found.stopped else ""
    baselines: dict[str, Evaluated | None] = {}
    shape: list[Evaluated] | None = None
    try:
        if answer.best is not None and stopped != "interrupt":
            context = Context(
                answer.scales, answer.best.report.num_devices, np.random.default_rng(seed), time.perf_counter,
                time.perf_counter() + limit_s,
            )  # fmt: skip
            with progress("baselines", total=len(BASELINES)) as advance:
                for done, (name, rule) in enumerate(BASELINES.items()):
                    baselines[name] = rule(answer.problem, context)
                    advance(done + 1)
        if pareto:
            with progress("Pareto front", total=1.0) as advance:
                shape, complete = front(
                    answer.problem,
                    clock=time.perf_counter,
                    deadline=time.perf_counter() + limit_s,
                    advance=advance,
                )
            if not complete:
                click.echo(f"the front is not complete: stopped after {limit_s:g} s", err=True)
    except KeyboardInterrupt:
        stopped = "interrupt"
        click.echo("interrupted: the plan stands, the comparison is not complete", err=True)
    return answer_dict(answer, baselines=baselines, top=top, inputs=inputs, front=shape), stopped


def _learned(policy: str | None, in_use: str | None) -> Planner:
    """Return the learned policy as a planner."""
    from functools import partial

    from strata.training.hi_ppo.global_agent import InUse
    from strata.training.hi_ppo.plan import plan_hi_ppo
    from strata.training.hi_ppo.policy import load_policy
    from strata.training.plan.planfile import read_plan

    using = None if in_use is None else InUse(read_plan(in_use).plan)
    return partial(plan_hi_ppo, policy=load_policy(policy), clock=time.perf_counter, in_use=using)


def _asked(job: TrainingJob, minimize: str | None, weights: tuple[float, float, float] | None) -> TrainingJob:
    from strata.workload.job import Objective

    if minimize is not None:
        job = replace(job, objective=Objective(minimize))
    if weights is not None:
        if minimize is None and job.objective in (Objective.TIME, Objective.COST):
            job = replace(job, objective=Objective.REWARD)
        if job.objective not in (Objective.REWARD, Objective.TCHEBYCHEFF):
            raise UsageError(
                f"--weights has no meaning for --minimize {job.objective}", hint="--minimize tchebycheff or reward"
            )
        job = replace(job, weights=weights)
    return job
