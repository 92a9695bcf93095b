"""`strata bench serving`: lay out the pools of a case file and score the plans by the neutral model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import Line, Shown, emit, output_option, progress, rows
from strata.cli.parameters import Finite

if TYPE_CHECKING:
    from strata.evaluation.published_benchmarks.serving_cases import ServingCase

INTERRUPTED: Final = 130


@click.command()
@click.argument("cases", type=click.Path(), metavar="CASES.json")
@click.option(
    "--goal",
    type=click.Choice(["both", "throughput", "latency"]),
    default="both",
    help="What to optimise a plan for.",
)
@click.option(
    "--strategy",
    type=click.Choice(["auto", "dp", "greedy"]),
    default="auto",
    help="Search (auto), the reference dynamic programme, or sorted greedy.",
)
@click.option(
    "--time-limit",
    type=Finite(min=0.0),
    metavar="SECONDS",
    help="Stop each search after this time; the best plan so far is given.",
)
@output_option
def serving(cases: str, goal: str, strategy: Any, time_limit: float | None, output: str) -> int:
    """Lay out every pool of CASES.json (nodes, capacities, round trips) as pipelines.

    tokens_per_s and decode_ms are by the neutral model of the file: the slowest stage sets the pace, and decoding
    is the mean over tokens of all stages and hops, the closing one too. No plan exceeds bound (tokens/s); gap is
    what the plan may miss of it. A plan for both gives no fewer tokens/s than nodes filled in the order of their
    names, and in pools of up to 8 nodes 98 % of the most. A pool that cannot hold the model has no pipelines, and
    reasons. Ctrl-C prints the cases that are done.
    """
    from strata.evaluation.bench.serving import measure
    from strata.evaluation.published_benchmarks.serving_cases import read_cases

    pools, answers, is_whole = read_cases(cases), list[dict[str, Any]](), True
    limit_s = math.inf if time_limit is None else time_limit
    with progress("planning", total=len(pools)) as advance:
        try:
            for answer in measure(pools, goal=goal, strategy=strategy, time_limit_s=limit_s):
                answers.append(answer)
                advance(len(answers))
        except KeyboardInterrupt:
            is_whole = False
    emit({"cases": answers}, output, _show(answers, pools[: len(answers)]))
    if not is_whole:
        click.echo(f"interrupted: {len(answers)} of {len(pools)} cases", err=True)
        return INTERRUPTED
    return 0


def _show(answers: list[dict[str, Any]], cases: list[ServingCase]) -> Shown:
    body = []
    for answer, case in zip(answers, cases, strict=True):
        peer = answer.get("parallax")
        gap = answer["gap"]
        body.append(
            (
                answer["id"],
                str(len(case.pool.nodes)),
                str(len(answer["pipelines"])),
                f"{answer['tokens_per_s']:.0f}",
                "-" if gap is None else f"{gap:.1%}",
                _ratio(answer, peer, "tokens_per_s"),
                "-" if answer["decode_ms"] is None else f"{answer['decode_ms']:.1f}",
                _ratio(answer, peer, "decode_ms"),
                f"{answer['seconds']:.2f}",
            )
        )
    headers = ("case", "nodes", "pipes", "tokens/s", "gap", "x peer", "decode ms", "x peer", "s")
    yield rows(headers, body, right=range(1, len(headers)))
    for answer in answers:
        for reason in answer["reasons"]:
            yield Line(f"{answer['id']}: {reason['text']}", style="yellow")
    groups = {"all cases": 0, "16+ nodes and 64+ layers": 1}
    for title, large in groups.items():
        pairs = [
            (answer, answer["parallax"])
            for answer, case in zip(answers, cases, strict=True)
            if "parallax" in answer
            and answer["pipelines"]
            and (not large or (len(case.pool.nodes) >= 16 and case.pool.num_layers >= 64))
        ]
        if pairs:
            tokens, decode = (
                math.exp(sum(math.log(a[key] / b[key]) for a, b in pairs) / len(pairs))
                for key in ("tokens_per_s", "decode_ms")
            )
            yield f"{title} ({len(pairs)}): {tokens:.3f}x tokens/s, {decode:.3f}x decode (geometric means)"
    if any("parallax" in answer for answer in answers):
        yield "peer: Parallax's stored plan of the most tokens/s. Figures: analytic."


def _ratio(answer: dict[str, Any], peer: dict[str, float] | None, key: str) -> str:
    return "-" if peer is None or answer[key] is None else f"{answer[key] / peer[key]:.3f}"
