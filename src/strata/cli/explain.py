"""`strata explain`: why a plan was chosen, stage by stage, and why a domain or a node was not used."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.output import emit, output_option
from strata.tables import Shown, rows
from strata.units import show_bytes, show_time


@click.command()
@click.argument("plan", type=click.Path(dir_okay=False), required=False)
@click.option("--why-not", "why_not", metavar="DOMAIN", help="Why the plan does not use this domain (or node).")
@output_option
def explain(plan: str | None, why_not: str | None, output: str) -> int:
    """Say why PLAN was chosen, or why a domain was not.

    PLAN is what `strata plan train|serve --save` wrote, or what its `-o json` printed; without it, the latest
    answer.

    \b
    strata plan train aws10 llama-3.1-70b --save plan.json
    strata explain plan.json --why-not Tokyo
    """
    from strata.api import explain as api

    answer = api.explain(plan, why_not=why_not)
    if why_not is not None:
        emit(answer, output, ["\n".join(answer["text"])])
        return 0
    if answer["kind"] == "ServingPlan":
        from strata.cli.plan_serve_table import show_serving

        emit(answer, output, show_serving(answer, next_command=False))
        return 0 if answer["pipelines"] else 3
    emit(answer, output, _show(answer))
    return 0 if answer["plans"] else 3


def _show(data: dict[str, Any]) -> Shown:
    from strata.cli.plan_table import context_degrees, show_plans

    yield from show_plans(data, next_command=False)
    if not data["plans"]:
        return
    best = data["plans"][0]
    context = context_degrees(best)[-1]
    pieces = f" cp{context}" if context > 1 else ""
    yield ""
    body = [
        [
            stage["domain"],
            stage["accelerator"],
            _layers(stage),
            f"{stage['replicas']}x tp{stage['tensor_parallel']}{pieces}",
            show_time(stage["forward_s"]),
            show_time(stage["backward_s"]),
            f"{show_bytes(stage['memory_bytes'])}/{show_bytes(stage['memory_limit_bytes'])}",
        ]
        for stage in best["stages"]
    ]
    yield rows(["stage in", "device", "layers", "copies", "fwd", "bwd", "memory"], body, right=range(4, 7))


def _layers(stage: dict[str, Any]) -> str:
    """Write which layers a stage holds; files written before chunks were know only their number."""
    first, count = stage["first_layer"], stage["num_layers"]
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in stage.get("chunks", [(first, first + count - 1)]))
