"""A roll-out on the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from strata.cli.output import rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.host.rollout.report import RolloutReport

_MOST_JOBS: Final = 12


def show(console: Console, report: RolloutReport) -> None:
    """Print where a roll-out stands: the noise floor, the change, capacity saved, who went back."""
    verdict = report.verdict
    console.print(f"{verdict.status}: {verdict.reason}", style="bold")
    noise = verdict.noise
    if noise is not None:
        console.print(
            f"noise floor: 95% of {noise.pairs} A/A pairs within {math.expm1(noise.low):+.1%} .. "
            f"{math.expm1(noise.high):+.1%}; "
            f"{report.rollout.plan.ab_pairs} pairs show {math.expm1(noise.smallest):.1%}"
        )
    if math.isfinite(verdict.low) and math.isfinite(verdict.high):
        console.print(
            f"change, valid at any time: {math.expm1(verdict.low):+.1%} .. {math.expm1(verdict.high):+.1%}"
        )
    if report.ratio is not None and report.saved is not None:
        console.print(
            f"mean over {len(report.jobs)} jobs: {report.ratio.estimate - 1:+.1%} "
            f"({report.ratio.low - 1:+.1%} .. {report.ratio.high - 1:+.1%}); capacity saved "
            f"{report.saved.estimate:.1%} ({report.saved.low:.1%} .. {report.saved.high:.1%}) of "
            f"{sum(job.devices for job in report.jobs):,} devices"
        )
    if report.rollout.strayed:
        console.print(f"{report.rollout.strayed} attempts ran under another policy than assigned: left out")
    if verdict.jobs_back:
        console.print(f"back on the baseline: {', '.join(verdict.jobs_back)}")


def show_jobs(console: Console, report: RolloutReport) -> None:
    """Print the jobs that fared worst."""
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
    console.print()
    console.print(rows(["job, worst first", "pairs", "devices", "change", ""], body, right=(1, 2, 3)))
    if len(shown) < len(report.jobs):
        console.print(f"{len(report.jobs) - len(shown):,} more jobs: -o json lists all")
