"""A roll-out on the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from strata.cli.output import rows

if TYPE_CHECKING:
    from rich.console import Console

    from strata.host.rollout.report import RolloutReport

_MOST_JOBS: Final = 12


def show(console: Console, found: RolloutReport) -> None:
    """Print where a roll-out stands: the noise floor, the change, capacity saved, who went back."""
    verdict = found.verdict
    console.print(f"{verdict.status}: {verdict.reason}", style="bold")
    noise = verdict.noise
    if noise is not None:
        console.print(
            f"noise floor: 95% of {noise.pairs} A/A pairs within {math.expm1(noise.low):+.1%} .. "
            f"{math.expm1(noise.high):+.1%}; "
            f"{found.rollout.plan.ab_pairs} pairs show {math.expm1(noise.smallest):.1%}"
        )
    if math.isfinite(verdict.low) and math.isfinite(verdict.high):
        console.print(
            f"change, valid at any time: {math.expm1(verdict.low):+.1%} .. {math.expm1(verdict.high):+.1%}"
        )
    if found.ratio is not None and found.saved is not None:
        console.print(
            f"mean over {len(found.jobs)} jobs: {found.ratio.estimate - 1:+.1%} "
            f"({found.ratio.low - 1:+.1%} .. {found.ratio.high - 1:+.1%}); capacity saved "
            f"{found.saved.estimate:.1%} ({found.saved.low:.1%} .. {found.saved.high:.1%}) of "
            f"{sum(job.devices for job in found.jobs):,} devices"
        )
    if found.rollout.strayed:
        console.print(f"{found.rollout.strayed} attempts ran under another policy than they were told: left out")
    if verdict.jobs_back:
        console.print(f"back on the baseline: {', '.join(verdict.jobs_back)}")


def show_jobs(console: Console, found: RolloutReport) -> None:
    """Print the jobs that fared worst."""
    if not found.jobs:
        return
    shown = found.jobs[:_MOST_JOBS]
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
    if len(shown) < len(found.jobs):
        console.print(f"{len(found.jobs) - len(shown):,} more jobs: -o json has them all")
