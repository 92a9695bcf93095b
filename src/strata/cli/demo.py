"""`strata demo`: three jobs on bundled fleets, planned and compared, with everything written to out/."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import POSITIVE
from strata.errors import INTERRUPTED
from strata.tables import Shown
from strata.units import show_time

SCENES: Final = (
    (
        "seed",
        "llama-3.1-70b",
        "Llama 3.1 70B on three sites (8 GPUs each, 2-5 Gbps, 30-80 ms). No site holds the model "
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
@click.option("--out", default="out", type=click.Path(file_okay=False), help="Where to write.")
@click.option("--top", default=3, type=POSITIVE, help="Plans to show per job.")
@click.option("--live", is_flag=True, help="Run and move a small real job instead: no torch, under a minute.")
@click.option("--plain", is_flag=True, help="With --live: no network namespaces, also where rights allow them.")
@output_option
def demo(out: str, top: int, live: bool, plain: bool, output: str) -> int:
    """Plan three real jobs on bundled fleets; writes the plans to out/.

    Each is planned exactly, set beside the best single domain, the same number of GPUs in one domain, and seven
    other rules, with the reasons and the next command to try.

    With --live: three domains on this machine, the scheduler, and a small training job (NumPy) that is submitted,
    runs across two of them, is moved when its link goes bad, and finishes.

    \b
    strata demo
    strata demo --live
    """
    if live or plain:
        from strata.cli.demo_live import demo_live

        return demo_live(output, may_shape=not plain)
    plans: list[dict[str, Any]] = []
    is_interrupted = False
    try:
        for fleet, job, _ in SCENES:
            data, is_interrupted = _plan(fleet, job, top, Path(out))
            plans.append(data)
            if is_interrupted:
                break
    except KeyboardInterrupt:
        is_interrupted = True
    page = _report(plans, Path(out)) if plans else None
    emit(plans, output, _show(plans, out))
    if page:
        click.echo(f"the same with pictures: {page}", err=True)
    if is_interrupted:
        click.echo(f"interrupted: {len(plans)} of {len(SCENES)} jobs", err=True)
    return INTERRUPTED if is_interrupted else 0


def _plan(fleet: str, job: str, top: int, out: Path) -> tuple[dict[str, Any], bool]:
    """Return a plan file's content, with where it was written to, and whether Ctrl-C cut the search short."""
    import time

    from strata.cli.output import progress
    from strata.files import write_json
    from strata.fleet.schema import load_fleet
    from strata.training.plan.compare import plan_request
    from strata.training.plan.planned import PlanRequest
    from strata.workload.schema import load_job

    request, inputs = PlanRequest(top=top), {"fleet": fleet, "job": job}
    report = plan_request(load_fleet(fleet), load_job(job), request, clock=time.perf_counter, progress=progress)
    data = report.to_dict(request, inputs)
    file = out / f"{fleet}-{job}.json"
    write_json(file, data)
    return {**data, "inputs": {**inputs, "saved": str(file)}}, report.interrupted


def _report(plans: list[dict[str, Any]], out: Path) -> Path:
    """Write the plans as a page with pictures, and return where."""
    from strata.files import write_text
    from strata.web.report import document

    page = out / "report.html"
    write_text(page, document([(Path(data["inputs"]["saved"]).name, data) for data in plans], title="strata demo"))
    return page


def _show(plans: list[dict[str, Any]], out: str) -> Shown:
    from rich.rule import Rule

    from strata.cli.plan_table import show_plans

    for number, ((fleet, job, about), data) in enumerate(zip(SCENES, plans, strict=False), 1):
        yield Rule(f"{number}/{len(SCENES)}  {job} on {fleet}", align="left")
        yield about
        yield ""
        yield from show_plans(data, saved=data["inputs"]["saved"])
        yield ""
    if not plans:
        return
    spent = sum(data["search_s"] for data in plans)
    first = plans[0]["inputs"]["saved"]
    yield Rule()
    yield f"Planned {len(plans)} jobs in {show_time(spent)} of search; the plans are in {out}/ as JSON."
    yield "Figures say how far to trust them; no layer was measured on your machines: see `not measured` above."
    yield "next: strata explain " + first + "   or: strata demo --live   or: strata plan train --help"
