"""`strata bench` of planning and simulating training jobs; the bodies are in `strata.evaluation.bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import POSITIVE, Finite, OutputFile
from strata.errors import INTERRUPTED


@click.command()
@click.argument("cases", type=click.Path(), metavar="CASES.json")
@output_option
def training(cases: str, output: str) -> None:
    """Plan every point of CASES.json (measured layer profiles, quotas, prices).

    Plans are scored with the neutral formulas all planners are compared by; search_s counts reading the
    file, building all tables and the search. A point whose limits nothing meets has no plan, and a reason.

    \b
    strata bench training cases.json -o json
    """
    from strata.evaluation.bench import training as bench

    data, points = bench.measure(cases, progress=progress)
    emit(data, output, bench.show(data["points"], points))


@click.command()
@click.option("--seed", default=0, help="Random seed of the fleets.")
@click.option("--job", default="llama-3.1-70b", help="A job file, or a bundled job's name.")
@click.option("--time-limit", default=30.0, type=Finite(min=0), help="Time limit of each plan, in seconds.")
@output_option
def planning(seed: int, job: str, time_limit: float, output: str) -> int:
    """Time the planner on bundled fleets and on random ones of 4 to 32 domains.

    search_s is CPU time of the whole call, from the fleet and the job to the ranked answer; gap is how much
    better, as a share, any plan could be than the one returned. shortlist_s is CPU time of the fast candidates
    that a learned policy picks from, shortlist_regret how much slower the fastest of them is than the answer.

    \b
    strata bench planning --job llama-3.1-8b
    """
    from strata.evaluation.bench import planning as bench

    data, is_interrupted = bench.measure(job, seed=seed, time_limit_s=time_limit, progress=progress)
    emit(data, output, bench.show(data))
    if is_interrupted:
        click.echo(f"interrupted: {len(data['rows'])} rows", err=True)
    return INTERRUPTED if is_interrupted else 0


@click.command()
@click.option("--plans", type=POSITIVE, default=20_000, help="Plans in a batch.")
@output_option
def simulate(plans: int, output: str) -> None:
    """Measure plans per second of process CPU time, on one thread, for NumPy and (if installed) torch.

    Then one LLM step (32 layers, 4 stages x 8 copies, 8 microbatches) by the events backend, its copies together
    or each with its own jitter, beside ASTRA-sim's CPU time.

    \b
    strata bench simulate --plans 1000
    """
    from strata.evaluation.bench import simulate as bench

    data = bench.measure(plans)
    emit(data, output, bench.show(data))


@click.command()
@click.argument("cases", type=click.Path())
@output_option
def accuracy(cases: str, output: str) -> None:
    """Predict the measured runs of the case file CASES and show the errors.

    Rows with a note are doubtful ("?"): they count in the means, which are given without them too.
    Left-out errors come from constants fitted again without the run, or without its whole set.

    \b
    strata bench accuracy measured.csv -o json
    """
    from strata.evaluation.bench import accuracy as bench

    data = bench.measure(cases)
    emit(data, output, bench.show(data))


@click.command()
@click.argument("table", type=click.Path(), metavar="FILE.csv")
@click.option("--svg", type=OutputFile(), help="Write the errors as a picture.")
@output_option
def published(table: str, svg: Path | None, output: str) -> None:
    """Predict the step time of every run in FILE.csv with the layout it was published with.

    A row is a model, its cards and its layout (docs/accuracy.md lists the columns); an empty microbatch or number
    of virtual stages is chosen. Without the column step_s the predictions alone are given. bias is the mean error,
    its sign kept; fits counts all memory of a card. Rows that cannot be read are faults of the file (exit code 2);
    the others are predicted all the same.

    \b
    strata bench published runs.csv --svg accuracy.svg
    """
    from strata.evaluation.bench import published as bench
    from strata.evaluation.published_benchmarks.published_run import read_table

    runs, bad = read_table(table)
    data = bench.measure(runs, progress=progress)
    if svg is not None:
        bench.plot(runs, data, svg)
    emit(data, output, bench.show(runs, data))
    if bad is not None:
        raise bad


@click.command()
@click.argument("table", type=click.Path())
@output_option
def astra(table: str, output: str) -> None:
    """Answer every run of the CSV file TABLE as ASTRA-sim would, and count equal nanoseconds.

    Without the column reported_ns the answers alone are given. Runs that failed are not counted; the reason
    is. Nor are llm runs: they show ASTRA-sim's scale, their rows say little of them. Pipelines are shown beside
    our default model too.

    \b
    strata bench astra table.csv
    """
    from strata.evaluation.bench import astra as bench

    data = bench.measure(table)
    emit(data, output, bench.show(data))


@click.command()
@click.option("--quick", is_flag=True, help="Ten domains and 100 jobs alone, fewer measurements, a smaller week.")
@output_option
def control(quick: bool, output: str) -> None:
    """Time the scheduler's loop: decisions a second, from observation to decision, memory, starts, a week of jobs.

    Simulated domains, the exact rule, plans inside one domain: a step takes in what every domain and the links of
    one of them report, and decides anew on every running job. Then hi-ppo and jobs over two domains each, where
    every link reports. The week has no events but those of its jobs.

    \b
    strata bench control --quick
    """
    from strata.evaluation.bench import control as bench

    small: dict[str, Any] = (
        {"sizes": ((10, 100),), "observations": 20_000, "starts": 5, "week": (4, 10)} if quick else {}
    )
    data = bench.measure(**small, progress=progress)
    emit(data, output, bench.show(data))
