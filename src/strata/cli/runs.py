"""`strata runs`: the history of plans and reports of this machine."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from strata.cli.lazy import LazyGroup
from strata.cli.output import emit, output_option
from strata.cli.parameters import POSITIVE
from strata.errors import UsageError
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from strata.history import Entry, History


@click.group(
    cls=LazyGroup,
    table={
        "list": ("strata.cli.runs:list_", "The newest ones."),
        "show": ("strata.cli.runs:show_", "One of them, as it was printed."),
        "compare": ("strata.cli.runs:compare", "Two training plans, figure by figure."),
        "rm": ("strata.cli.runs:remove", "Forget some."),
    },
)
def runs() -> None:
    """What `strata plan`, `strata host report` and `host enforce` answered on this machine, in one SQLite file."""


def _history() -> History:
    from strata.history import History, default_path

    path = default_path(os.environ)
    if not path.exists():
        raise UsageError("nothing is kept yet", hint="strata plan train seed llama-3.1-70b")
    return History(path)


@click.command(name="list")
@click.option("--kind", help="Only these: training, serving, host or enforcement.")
@click.option("--last", default=20, type=POSITIVE, help="How many.")
@output_option
def list_(kind: str | None, last: int, output: str) -> None:
    """List the newest answers.

    \b
    strata runs list --kind training
    """
    with _history() as history:
        entries = history.latest(kind, last) if kind else history.newest(last)
    data = [_summary(entry) for entry in entries]
    emit({"runs": data}, output, _list_shown(data))


def _summary(entry: Entry) -> dict[str, Any]:
    made = entry.decision
    reasons = made.get("reasons", [])
    return {
        "id": entry.id, "kind": entry.kind, "at_s": entry.at_s, "name": made.get("name"),
        "fleet": made.get("fleet", {}).get("name"), "inputs_digest": made.get("inputs_digest"),
        "text": reasons[0]["text"] if reasons else made.get("verdict", ""),
    }  # fmt: skip


def _list_shown(data: list[dict[str, Any]]) -> Shown:
    if not data:
        yield "none of this kind"
        return
    body = [
        [
            str(item["id"]), time.strftime("%m-%d %H:%M", time.localtime(item["at_s"])), item["kind"],
            item["name"] or "-", item["fleet"] or "-", item["text"],
        ]
        for item in data
    ]  # fmt: skip
    yield rows(["id", "when", "kind", "job", "fleet", "answer"], body, right=[0])


@click.command(name="show")
@click.argument("number", type=POSITIVE)
@output_option
def show_(number: int, output: str) -> None:
    """Show answer NUMBER again.

    \b
    strata runs show 3
    """
    with _history() as history:
        entry = history.get(number)
    emit(entry.decision, output, _shown(entry))


def _shown(entry: Entry) -> Shown:
    if entry.kind == "training":
        from strata.cli.plan_table import show_plans

        yield from show_plans(entry.decision, next_command=False)
    elif entry.kind == "serving":
        from strata.cli.plan_serve_table import show_serving

        yield from show_serving(entry.decision, next_command=False)
    else:
        yield str(entry.decision.get("verdict", ""))
        yield from (f"{finding['token']}: {finding['what']}" for finding in entry.decision.get("findings", []))


_FIGURES = (
    "step_time_s",
    "tokens_per_s",
    "utilization",
    "wan_bytes_per_step",
    "num_devices",
    "cost_usd_per_mtoken",
)


@click.command()
@click.argument("before", type=POSITIVE)
@click.argument("after", type=POSITIVE)
@output_option
def compare(before: int, after: int, output: str) -> None:
    """Set the plans of training answers BEFORE and AFTER side by side.

    \b
    strata runs compare 3 5
    """
    with _history() as history:
        entries = [history.get(number) for number in (before, after)]
    for entry in entries:
        if entry.kind != "training" or not entry.decision["plans"]:
            raise UsageError(f"run {entry.id} has no training plan to compare", hint="strata runs list")
    old, new = (entry.decision["plans"][0] for entry in entries)
    data = {
        "before": _summary(entries[0]), "after": _summary(entries[1]),
        "same_inputs": entries[0].decision["inputs_digest"] == entries[1].decision["inputs_digest"],
        "same_plan": old["plan"] == new["plan"],
        "figures": {
            key: {"before": old[key], "after": new[key], "ratio": _ratio(old[key], new[key])} for key in _FIGURES
        },
    }  # fmt: skip
    emit(data, output, _compared(data, old, new))


def _ratio(before: float | None, after: float | None) -> float | None:
    return after / before if before and after is not None else None


def _compared(data: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> Shown:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.4g}"

    body = [["plan", old["name"], new["name"], "same" if data["same_plan"] else ""]]
    for key, figure in data["figures"].items():
        ratio = "" if figure["ratio"] is None else f"{figure['ratio']:.3f}x"
        body.append([key, shown(figure["before"]), shown(figure["after"]), ratio])
    yield rows(
        ["", f"run {data['before']['id']}", f"run {data['after']['id']}", "after / before"], body, right=[3]
    )
    if not data["same_inputs"]:
        yield "made from other fleets or jobs"


@click.command(name="rm")
@click.argument("numbers", type=POSITIVE, nargs=-1, required=True)
def remove(numbers: tuple[int, ...]) -> None:
    """Forget answers NUMBERS; all or none of them.

    \b
    strata runs rm 3 4
    """
    with _history() as history:
        for number in numbers:
            history.get(number)
        for number in dict.fromkeys(numbers):
            history.remove(number)
