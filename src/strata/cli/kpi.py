"""`strata kpi`: the eleven target KPIs, measured with the bundled policy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from strata.cli.output import emit, output_option, progress
from strata.errors import INTERRUPTED, GoalMissed

if TYPE_CHECKING:
    from strata.evaluation.kpi.kpi import Kpi


@click.command()
@click.option("--quick", is_flag=True, help="Few instances: some minutes on 2 cores, with wide intervals.")
@click.option("--row", "names", multiple=True, metavar="NAME", help="Only this row; repeatable.")
@click.option("--policy", "file", type=click.Path(), help="A policy file instead of the bundled one.")
@click.option("--fail-on-missed", is_flag=True, help="Exit 4 when a row misses its target.")
@output_option
def kpi(quick: bool, names: tuple[str, ...], file: str | None, fail_on_missed: bool, output: str) -> int:
    """Measure the eleven target KPIs on instances that training never saw.

    Each row has its baseline, a 95 % interval over instances, and in JSON further checks: stronger
    baselines, searches of the same budget, the cases where it loses. Ctrl-C prints the rows so far.

    \b
    strata kpi --quick
    strata kpi --row coordination_time -o json
    """
    from strata.errors import UsageError
    from strata.evaluation.kpi.kpi import NAMES
    from strata.evaluation.kpi.study import Study
    from strata.evaluation.kpi.table import answer, measure_all
    from strata.evaluation.kpi.terminal import show
    from strata.training.hi_ppo.policy import load_policy

    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"there is no KPI row {unknown[0]!r}", hint=f"one of {', '.join(NAMES)}")
    ordered: list[str] = [name for name in NAMES if name in (names or NAMES)]
    study = Study(load_policy(file), time.perf_counter, time.process_time, quick=quick)
    rows_done: list[Kpi] = []
    started, is_whole = time.perf_counter(), True
    with progress("measuring", total=len(ordered)) as advance:
        try:
            measured = measure_all(
                study, names=ordered, advance=lambda name, share: advance(ordered.index(name) + share)
            )
            rows_done.extend(measured)  # row by row: what came before an interrupt stays
        except KeyboardInterrupt:
            is_whole = False
    data = answer(rows_done, study, elapsed_s=time.perf_counter() - started, is_whole=is_whole)
    emit(data, output, show(data))
    if not is_whole:
        click.echo(f"interrupted: {len(rows_done)} of {len(ordered)} rows", err=True)
        return INTERRUPTED
    return GoalMissed.exit_code if fail_on_missed and not all(row.met for row in rows_done) else 0
