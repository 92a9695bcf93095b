"""What the words and marks of a table of plans mean: only of those that stand in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from strata.tables import Line, Shown

SCHEDULES: Final[Mapping[str, str]] = {
    "1f1b": "a forward and a backward in turn",
    "1f1b-la": "a forward and a backward in turn, enough ahead to hide link latency",
    "gpipe": "all forwards of a step, then all backwards",
    "zb-h1": "1f1b whose weight gradients fill the bubbles (zero bubble)",
    "dualpipev": "down all stages and back; forwards and backwards overlap",
    "interleaved": "1f1b on so many chunks of layers a stage",
}


def show_legend(plans: Sequence[Mapping[str, Any]]) -> Shown:
    """Print what the second line of each plan means, and two columns."""
    yield "  pp: stages · dp: replicas · tp: GPUs of a stage · mb: microbatch size x number"
    if any(stage["context_parallel"] > 1 for stage in _stages(plans)):
        yield "  cp: pieces of a sequence, each on tp GPUs, and how attention sees the others"
    if any(plan["plan"]["expert_parallel"] > 1 for plan in plans):
        yield "  ep: GPUs that share one set of experts"
    for schedule in dict.fromkeys(plan["schedule"] for plan in plans):
        yield f"  {schedule}: {SCHEDULES[schedule]}"
    if any(plan["recompute"] != "none" for plan in plans):
        yield "  recompute: activations are computed again, which saves memory"
    if any(plan["local_steps"] > 1 for plan in plans):
        yield "  H: steps between two exchanges across domains (DiLoCo)"
    if any(plan["gradient_compression"] > 1 for plan in plans):
        yield "  grad/: by how much gradients between domains shrink"
    yield "  util: share of time GPUs compute · MFU: of peak FLOPs, recomputing left out"
    yield "  trust: of the worst input: measured, calibrated, analytic or assumed"


def _stages(plans: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (stage for plan in plans for pipeline in plan["plan"]["pipelines"] for stage in pipeline["stages"])


def show_assumed(inputs: Sequence[Mapping[str, str]]) -> Shown:
    """Print which inputs are not measured, and what would measure them."""
    if inputs:
        yield "  not measured, and what would measure it:"
    for item in inputs:
        yield Line(f"{item['input']}, {item['value']} · {item['measure']}", indent="    ", hang="      ")
