"""The answer of `strata kpi -o json` as the Markdown of docs/kpi.md: every figure of it, nothing beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

SIGNS: Final = {"at least": "≥", "at most": "≤", "below": "<", "is": ""}


def markdown(answer: Mapping[str, Any]) -> list[str]:
    """Return the lines of the page, without its title."""
    command = "strata kpi --quick -o json" if answer["quick"] else "strata kpi -o json"
    policy = answer["policy"]
    lines = [
        f"Printed by `{command}` in {answer['elapsed_s']:.0f} s. "
        f"Policy: `{policy['file'] or 'none, the safe rule'}`, "
        f"trained {policy['trained_at'] or 'at an unrecorded time'}, seed {policy['seed']}.",
        "",
    ]
    if answer["quick"]:
        more = "`strata kpi` without --quick measures some five times as many."
        lines += [f"**A quick run: few instances, wide intervals. {more}**", ""]
    lines += [
        "| row | value | target | met | 95 % interval | instances | trust |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in answer["kpis"]:
        low, high = (_value(end) for end in row["ci95"])
        target = f"{SIGNS[row['sense']]} {_value(row['target'])}".strip()
        met = ("yes, without the policy, too" if row.get("met_without") else "yes") if row["met"] else "**no**"
        name = f"[{row['name']}](#{row['name']})"
        lines.append(
            f"| {name} | {_value(row['value'])} | {target} | {met} | {low} … {high} | {row['instances']} "
            f"| {row['trust']} |"
        )
    lines.append("")
    for row in answer["kpis"]:
        lines += [
            f"## {row['name']}",
            "",
            *_met_without(row),
            f"{_sentence(row['definition'])} *Baseline:* {row['baseline']}.",
            "",
        ]
        lines += _beside(row)
        lines += _warnings(row["guards"])
        lines += _guards(row["guards"])
    return lines


def _met_without(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first line of a row whose target is no merit of the policy."""
    if row["met"] and row.get("met_without"):
        yield f"**The target is also met by {', '.join(row['met_without'])}.**"
        yield ""


def _beside(row: Mapping[str, Any]) -> Iterator[str]:
    beside = row.get("beside")  # rows measured before there was any have none
    if beside:
        yield from _table("the same figure of", {"": {"hi_ppo": row["value"], **beside}})
        if row["strongest"]:
            yield f"Strongest baseline: {row['strongest']}."
            yield ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _warnings(guards: Mapping[str, Any]) -> Iterator[str]:
    if guards.get("passes_only_against"):
        missed = ", ".join(guards.get("misses_against") or ()) or "stronger ones"
        yield f"**Met against {', '.join(guards['passes_only_against'])}; not against {missed}.**"
        yield ""
    elif guards.get("misses_against"):
        yield f"**Not met against {', '.join(guards['misses_against'])}.**"
        yield ""


def _guards(guards: Mapping[str, Any]) -> Iterator[str]:
    """Yield the guards: single figures as one table, and a table for each that holds more."""
    single = {k: v for k, v in guards.items() if not isinstance(v, Mapping) and k not in _TOLD}
    samples = {k: v for k, v in guards.items() if isinstance(v, Mapping) and not _is_table(v)}
    if single:
        yield from ("| guard | |", "|---|---|")
        yield from (f"| {name} | {_value(value)} |" for name, value in single.items())
        yield ""
    for columns in dict.fromkeys(tuple(sample) for sample in samples.values()):
        alike = {name: sample for name, sample in samples.items() if tuple(sample) == columns}
        yield from _table("guard", alike)
    for name, table in guards.items():
        if isinstance(table, Mapping) and _is_table(table):
            yield from (f"{name}:", "")
            yield from _table("", {key: _flat(inner) for key, inner in table.items()})


_TOLD: Final = ("passes_only_against", "misses_against")


def _table(corner: str, body: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in body.values() for column in row))
    yield f"| {corner} | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, row in body.items():
        yield f"| {name} | {' | '.join(_value(row.get(column)) for column in columns)} |"
    yield ""


def _is_table(value: Mapping[str, Any]) -> bool:
    return any(isinstance(inner, Mapping) for inner in value.values())


def _flat(value: Any, before: str = "") -> dict[str, Any]:
    """Return a nested mapping as one of dotted names."""
    if not isinstance(value, Mapping):
        return {before or "value": value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{before} {key}".strip())
    return flat


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_value, value)) or "none"
    return str(value)
