"""`strata demo`: three jobs on bundled fleets, planned and compared, with everything written to out/."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option
from strata.units import show_time

if TYPE_CHECKING:
    from rich.console import Console

SCENES: Final = (
    (
        "seed",
        "llama-3.1-70b",
        "Llama 3.1 70B on the three sites of seed 001 (8 GPUs each, 2-5 Gbps, 30-80 ms). No site holds the model "
        "alone; the row to read is `as many GPUs, one domain`: what crossing sites costs once GPUs are counted.",
    ),
    (
        "aws10",
        "llama-3.1-70b",
        "The same job on ten AWS regions: which of them to join, in which order. Joining more would be slower.",
    ),
    (
        "aws10",
        "llama-3.1-8b",
        "Llama 3.1 8B with small synchronous steps on the same regions: here one region alone is best.",
    ),
)


@click.command()
@click.option("--out", default="out", show_default=True, type=click.Path(file_okay=False), help="Where to write.")
@click.option("--top", default=3, show_default=True, type=click.IntRange(min=1), help="Plans to show per job.")
@output_option
def demo(out: str, top: int, output: str) -> int:
    """Plan three real jobs on bundled fleets; writes the answers to out/.

    Each is planned exactly, set beside the best single domain, the same number of GPUs in one domain, and seven
    other rules, with the reasons and the next command to try.
    """
    answers = [_planned(fleet, job, top, Path(out)) for fleet, job, _ in SCENES]
    emit(answers, output, lambda console: _show(console, answers, out))
    return 0


def _planned(fleet: str, job: str, top: int, out: Path) -> dict[str, Any]:
    from strata.cli.plan_train import planned
    from strata.files import write_json
    from strata.fleet.schema import load_fleet
    from strata.workload.schema import load_job

    data, _ = planned(
        load_fleet(fleet), load_job(job), {"fleet": fleet, "job": job}, top=top, seed=0, limit_s=30.0
    )
    file = out / f"{fleet}-{job}.json"
    write_json(file, data)
    data["inputs"]["saved"] = str(file)
    return data


def _show(console: Console, answers: list[dict[str, Any]], out: str) -> None:
    from strata.cli.plan_table import show_answer

    for number, ((fleet, job, about), data) in enumerate(zip(SCENES, answers, strict=True), 1):
        console.rule(f"{number}/{len(SCENES)}  {job} on {fleet}", align="left", characters="─")
        console.print(about)
        console.print()
        show_answer(console, data)
        console.print()
    spent = sum(data["search_s"] for data in answers)
    first = answers[0]["inputs"]["saved"]
    console.rule(characters="─")
    console.print(
        f"Planned {len(answers)} jobs in {show_time(spent)} of search; the answers are in {out}/ as JSON."
    )
    console.print(
        "Figures say how far to trust them: here `assumed`, since no layer was measured on your machines."
    )
    console.print("next: strata explain " + first + "   or: strata plan train --help")
