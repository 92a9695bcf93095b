"""`strata host rollout`: try a policy on attempts of jobs, A/A before A/B; it goes back by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import NATURAL, PATH, POSITIVE, Finite, OutputFile, Whole, choice
from strata.tables import Line, Shown, rows

if TYPE_CHECKING:
    from strata.host.rollout.report import RolloutReport
    from strata.host.rollout.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])
_SHARE: Final = Finite(0, 1)
_MOST_JOBS: Final = 12


class Rule(click.ParamType[tuple[str, str]]):
    """`label=pattern`."""

    name = "LABEL=PATTERN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return the label and the pattern."""
        from strata.host.rollout.rollout import LABELS

        label, _, pattern = str(value).partition("=")
        if label not in LABELS or not pattern:
            self.fail(f"{value!r} is not LABEL=PATTERN with a label of {', '.join(LABELS)}", param, ctx)
        return label, pattern


_state: Final = click.option(
    "--state", type=PATH, help="The SQLite file. Default: rollouts.db beside the history."
)
_opt_in: Final = click.option(
    "--opt-in", multiple=True, type=Rule(), help="Only matching jobs take part; repeat for more. Wildcards: *."
)
_opt_out: Final = click.option(
    "--opt-out", multiple=True, type=Rule(), help="Matching jobs keep the baseline, even if opted in."
)


@click.group()
def rollout() -> None:
    """Try a policy on attempts of jobs: A/A first, then A/B; widen it, or let it roll back.

    \b
    strata host rollout init layered --unit qps --opt-in team=ads --opt-out 'job=debug-*'
    strata host rollout next layered --job ads-7 --team ads --attempt 4      which policy now?
    strata host rollout add layered --job ads-7 --attempt 4 --policy candidate --from train.log
    strata host rollout status layered
    strata host rollout report layered --svg layered.svg
    """


@rollout.command()
@click.argument("name")
@click.option(
    "--unit",
    type=choice("qps", "step-time", "sm-active", "tensor-active"),
    default="qps",
    help="What attempts are compared by: a log or Prometheus, a Kineto trace, or the DCGM exporter.",
)
@click.option(
    "--pattern",
    default="",
    show_default=False,
    help="Regular expression of the figure in a line of a log; group 1 is the number.",
)
@click.option(
    "--metric",
    default="",
    show_default=False,
    help="Name of a Prometheus metric to read instead, from a page or a query's answer.",
)
@_opt_in
@_opt_out
@click.option("--share", type=_SHARE, default=1.0, help="Share of the jobs that take part.")
@click.option(
    "--alpha",
    type=Finite(1e-6, 0.5),
    default=0.05,
    help="Probability of a false positive, however often results are inspected.",
)
@click.option("--aa-pairs", type=Whole(min=8), default=20, help="Number of A/A pairs that come first.")
@click.option("--ab-pairs", type=Whole(min=8), default=200, help="Maximum number of A/B pairs.")
@click.option(
    "--guard",
    type=Finite(0.001, 0.9),
    default=0.1,
    help="A job that loses more than this twice in a row is rolled back.",
)
@_state
def init(
    name: str,
    unit: str,
    pattern: str,
    metric: str,
    opt_in: Sequence[tuple[str, str]],
    opt_out: Sequence[tuple[str, str]],
    share: float,
    alpha: float,
    aa_pairs: int,
    ab_pairs: int,
    guard: float,
    state: Path | None,
) -> None:
    """Begin a roll-out called NAME. Nothing changes until a launcher calls `next`.

    \b
    strata host rollout init pinning --unit step-time --metric step_time_s --aa-pairs 8 --ab-pairs 12
    """
    from strata.host.rollout.rollout import RolloutPlan, Rules, Unit

    plan = RolloutPlan(name, Unit(unit), pattern, metric, alpha, aa_pairs, ab_pairs, guard)
    with _store(state, is_new=True) as store:
        store.init(plan, Rules(tuple(opt_in), tuple(opt_out), share), at_s=_now_s())
    click.echo(f"{name}: {aa_pairs} pairs of attempts under equal policies come first", err=True)


@rollout.command()
@click.argument("name")
@_opt_in
@_opt_out
@click.option("--share", type=_SHARE, help="Share of the jobs that take part; jobs already in stay in.")
@click.option("--stop", is_flag=True, help="End the roll-out: all attempts run the baseline from now on.")
@_state
def change(
    name: str,
    opt_in: Sequence[tuple[str, str]],
    opt_out: Sequence[tuple[str, str]],
    share: float | None,
    stop: bool,
    state: Path | None,
) -> None:
    """Include more jobs, exclude some, or stop a roll-out at once.

    \b
    strata host rollout change pinning --share 0.5
    strata host rollout change pinning --stop
    """
    from strata.host.rollout.rollout import Rules

    with _store(state) as store:
        known = store.get(name)
        rules = Rules(
            (*known.rules.opt_in, *opt_in),
            (*known.rules.opt_out, *opt_out),
            known.rules.share if share is None else share,
        )
        store.change(known, rules, is_stopped=stop, at_s=_now_s())


def _attempt_options(command: Command) -> Command:
    for option in (
        click.option(
            "--config",
            default="",
            show_default=False,
            help="What must match for a comparison: world size, hosts, model version.",
        ),
        click.option("--attempt", "number", type=NATURAL, required=True, help="Which attempt of the job, from 0."),
        click.option("--job", required=True, help="The job."),
    ):
        command = option(command)
    return command


@rollout.command("next", short_help="Print the policy that an attempt about to start should run.")
@click.argument("name")
@_attempt_options
@click.option("--model", default="", show_default=False, help="The job's model, for the rules.")
@click.option("--paradigm", default="", show_default=False, help="The job's training paradigm, for the rules.")
@click.option("--team", default="", show_default=False, help="The job's team, for the rules.")
@_state
@output_option
def next_(
    name: str,
    job: str,
    number: int,
    config: str,
    model: str,
    paradigm: str,
    team: str,
    state: Path | None,
    output: str,
) -> None:
    """Print the policy that an attempt about to start should run under: baseline or candidate.

    \b
    strata host rollout next pinning --job train-17 --attempt 0 --model llama
    """
    from strata.host.rollout.judge import judge, next_policy

    labels = {"job": job, "model": model, "paradigm": paradigm, "team": team}
    with _store(state) as store:
        known = store.get(name)
        policy, reason = next_policy(known, judge(known), labels, number=number, config=config)
        policy = store.assign(known, job, number, policy, at_s=_now_s())
    answer = {"policy": str(policy), "reason": reason.to_dict()}

    if output == "table":
        click.echo(str(reason), err=True)
    emit(answer, output, [str(policy)])


@rollout.command()
@click.argument("name")
@_attempt_options
@click.option("--policy", type=choice("baseline", "candidate"), required=True, help="What the attempt ran under.")
@click.option("--from", "path", type=PATH, help="Log, Prometheus page, Kineto trace or DCGM page of the attempt.")
@click.option("--value", type=Finite(min=0, min_open=True), help="The measured value itself.")
@click.option("--failed", is_flag=True, help="The attempt failed.")
@click.option("--devices", type=POSITIVE, default=1, help="Accelerators it held.")
@_state
def add(
    name: str,
    job: str,
    number: int,
    config: str,
    policy: str,
    path: Path | None,
    value: float | None,
    failed: bool,
    devices: int,
    state: Path | None,
) -> None:
    """Record an attempt that ended. Adding it again changes nothing. Prints the status of the roll-out.

    \b
    strata host rollout add pinning --job train-17 --attempt 0 --policy baseline --value 1.93
    """
    from strata.host.rollout.judge import judge
    from strata.host.rollout.measures import measure
    from strata.host.rollout.rollout import Arm, Attempt

    if (path is not None) + (value is not None) + failed != 1:
        raise click.UsageError("give exactly one of --from, --value and --failed")
    with _store(state) as store:
        known = store.get(name)
        if path is not None:
            value = measure(known.plan, path)
        is_new = store.add(known, Attempt(job, number, Arm(policy), value, config, devices), at_s=_now_s())
        verdict = judge(store.get(name))
    shown = "failed" if value is None else f"{value:g}"
    click.echo(f"{'recorded' if is_new else 'known'}: {job} attempt {number}, {known.plan.unit} {shown}", err=True)
    click.echo(f"{verdict.status}: {verdict.reason}", err=True)


@rollout.command()
@click.argument("name")
@_state
@output_option
def status(name: str, state: Path | None, output: str) -> None:
    """Show the status of a roll-out. Exits 4 once it was rolled back.

    \b
    strata host rollout status pinning
    """
    _answer(name, state, output, svg=None, is_whole=False)


@rollout.command(short_help="Show how attempts differ, as histograms and a CDF.")
@click.argument("name")
@click.option("--svg", type=OutputFile(), help="Also write the figures to this file.")
@_state
@output_option
def report(name: str, svg: Path | None, state: Path | None, output: str) -> None:
    """Show the histograms of A/A and A/B, the CDF of the changes, and every job. Exits 4 once rolled back.

    \b
    strata host rollout report pinning --svg pinning.svg
    """
    _answer(name, state, output, svg=svg, is_whole=True)


def _answer(name: str, state: Path | None, output: str, *, svg: Path | None, is_whole: bool) -> None:
    from strata.errors import GoalMissed
    from strata.host.rollout.judge import RolloutStatus
    from strata.host.rollout.report import report_of

    with _store(state) as store:
        rollout_report = report_of(store.get(name))
    if svg is not None:
        from strata.files import write_text
        from strata.host.rollout import pictures

        write_text(svg, pictures.svg(rollout_report))
        click.echo(f"wrote {svg}", err=True)

    emit(rollout_report.to_dict(with_ratios=is_whole), output, _show(rollout_report, is_whole=is_whole))
    if rollout_report.verdict.status is RolloutStatus.ROLL_BACK:
        raise GoalMissed(
            f"{name} was rolled back: {rollout_report.verdict.reason}", hint="fix the policy, then begin anew"
        )


def _show(report: RolloutReport, *, is_whole: bool) -> Shown:
    from strata.host.rollout import pictures

    verdict = report.verdict
    yield Line(f"{verdict.status}: {verdict.reason}", style="bold")
    noise = verdict.noise
    if noise is not None:
        yield (
            f"noise floor: 95% of {noise.pairs} A/A pairs within {math.expm1(noise.low):+.1%} .. "
            f"{math.expm1(noise.high):+.1%}; "
            f"{report.rollout.plan.ab_pairs} pairs show {math.expm1(noise.smallest):.1%}"
        )
    if math.isfinite(verdict.low) and math.isfinite(verdict.high):
        yield f"change, valid at any time: {math.expm1(verdict.low):+.1%} .. {math.expm1(verdict.high):+.1%}"
    if report.ratio is not None and report.saved is not None:
        yield (
            f"mean over {len(report.jobs)} jobs: {report.ratio.estimate - 1:+.1%} "
            f"({report.ratio.low - 1:+.1%} .. {report.ratio.high - 1:+.1%}); capacity saved "
            f"{report.saved.estimate:.1%} ({report.saved.low:.1%} .. {report.saved.high:.1%}) of "
            f"{sum(job.devices for job in report.jobs):,} devices"
        )
    if report.rollout.strayed:
        yield f"{report.rollout.strayed} attempts ran under another policy than assigned: left out"
    if verdict.jobs_back:
        yield f"back on the baseline: {', '.join(verdict.jobs_back)}"
    if is_whole:
        yield ""
        yield from pictures.text(report)
        yield from _show_jobs(report)


def _show_jobs(report: RolloutReport) -> Shown:
    if not report.jobs:
        return
    shown = report.jobs[:_MOST_JOBS]
    body = [
        [
            job.name,
            str(job.pairs),
            str(job.devices),
            f"{math.expm1(job.change):+.1%}",
            "back" if job.is_back else "",
        ]
        for job in shown
    ]
    yield ""
    yield rows(["job, worst first", "pairs", "devices", "change", ""], body, right=(1, 2, 3))
    if len(shown) < len(report.jobs):
        yield f"{len(report.jobs) - len(shown):,} more jobs: -o json lists all"


def _store(state: Path | None, *, is_new: bool = False) -> AbstractContextManager[Store]:
    import os

    from strata.host.rollout.store import opened, state_path

    return opened(state or state_path(os.environ), is_new=is_new)


def _now_s() -> float:
    import time

    return time.time()
