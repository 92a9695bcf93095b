"""`strata plan serve`: layers of a model onto the nodes of a fleet, and the reasons."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from strata.cli.completing import FLEET, SERVING_JOB
from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import TIME_OR_0, OutputFile, choice
from strata.cli.planning import remember
from strata.serving.planning.goal import Goal

if TYPE_CHECKING:
    from strata.serving.planning.allocate import Strategy


@click.command()
@click.argument("fleet", type=FLEET)
@click.argument("job", type=SERVING_JOB)
@click.option(
    "--strategy",
    type=choice("auto", "dp", "greedy"),
    help="How layers go onto nodes: search, dynamic programming or sorted greedy; the job's strategy by default.",
)
@click.option(
    "--goal",
    type=click.Choice([str(goal) for goal in Goal]),
    default="both",
    help="What to optimise: tokens/s, decode time, both, or requests within the job's goals.",
)
@click.option("--time-limit", type=TIME_OR_0, default="30s", help="Stop searching after this time.")
@click.option("--save", type=OutputFile(), help="Also write the answer, as JSON, to this file.")
@output_option
def serve(
    fleet: str, job: str, strategy: Strategy | None, goal: str, time_limit: float, save: Path | None, output: str
) -> int:
    """Plan the serving of a JOB on a FLEET: files, or names of bundled ones.

    All devices of a node work as one tensor-parallel group, or several smaller groups side by side where more
    requests are served within the goals so; a pipeline is groups that hold all layers together.
    Times are without queues: `strata serve simulate` adds those.

    \b
    strata plan serve aws10 serve-llama-3.1-70b
    strata plan serve fleet.yaml job.yaml --goal latency -o json
    strata plan serve aws10 serve-llama-3.1-405b --save plan.json

    Exits 3 where no plan fits (the reasons say what would help), 4 where the plan misses the job's goals or rate.
    """
    from strata.fleet.schema import load_fleet
    from strata.serving.planning.planner import plan_serving
    from strata.workload.serving_schema import load_serving_job

    serving_job, hardware = load_serving_job(job), load_fleet(fleet)
    with progress("planning"), _stopped_by_interrupt() as is_stopped:
        answer = plan_serving(
            hardware,
            serving_job,
            clock=time.perf_counter,
            strategy=strategy or serving_job.strategy,
            goal=Goal(goal),
            time_limit_s=time_limit,
            is_stopped=is_stopped,
        )
    data = answer.to_dict(serving_job, inputs={"fleet": fleet, "job": job})
    if save:
        from strata.files import write_json

        write_json(save, data)
    remember("serving", data)

    from strata.cli.plan_serve_table import show_serving

    emit(data, output, show_serving(data, saved=str(save or "")))
    if is_stopped():
        return 130
    if not data["pipelines"]:
        return 3
    return 0 if answer.is_good_enough else 4


@contextmanager
def _stopped_by_interrupt() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C end the search with the best plan so far; the second interrupts as ever."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)
