"""Answers that are kept on this machine, which another version of strata may have written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from jinja2 import UndefinedError

from strata.errors import StrataError
from strata.history import Entry

_OTHERS: Final = (KeyError, IndexError, TypeError, AttributeError, UndefinedError)
"""What comes of drawing an answer of another form."""

_LISTED: Final[Mapping[str, Callable[[dict[str, Any]], object]]] = {
    "training": lambda made: (
        made["fleet"]["name"], made["trust"],
        [plan["name"] + f"{plan['step_time_s'] + plan['tokens_per_s']}" for plan in made["plans"]],
    ),
    "serving": lambda made: (
        made["fleet"]["name"], made["trust"],
        made["pipelines"] and made["figures"]["tokens_per_s"] + made["figures"]["decode_s"],
    ),
    "host": lambda made: (made["verdict"], [finding["severity"] for finding in made["findings"]]),
    "enforcement": lambda made: (made["end"], made["steps_done"], made["effect"] and made["effect"]["verdict"]),
}  # fmt: skip
"""What the list of a kind shows."""


def listed(entries: list[Entry]) -> list[Entry]:
    """Return those that the list of their kind can show; *Decisions* has all."""
    return [entry for entry in entries if _is_answer(entry) and _has(entry, _LISTED.get(entry.kind, dict))]


def as_known(entry: Entry) -> Entry:
    """Return an answer as it is, or, where it is none of ours, one that says so."""
    if _is_answer(entry):
        return entry
    why = {"token": "other-version", "text": "kept by another version of strata, or damaged"}
    return replace(entry, kind="other", decision={"name": f"answer {entry.id}", "reasons": [why]})


@contextmanager
def of_this_version(entry: Entry) -> Iterator[None]:
    """Say of an answer that cannot be drawn what it is. Raises StrataError."""
    try:
        yield
    except _OTHERS as error:
        what = f"{type(error).__name__} {error}"
        raise StrataError(
            f"answer {entry.id} was kept by another version of strata, or is damaged: {what}",
            hint=f"/plans/{entry.id}/data.json has all of it; strata runs rm {entry.id} forgets it",
        ) from error


def _is_answer(entry: Entry) -> bool:
    def shown(made: dict[str, Any]) -> object:
        reasons = [*made.get("reasons", ()), *made.get("alternatives", ())]
        findings = [finding["token"] + finding["what"] for finding in made.get("findings", ())]
        return made["name"] + "", [each.get("token") for each in reasons], findings

    return _has(entry, shown)


def _has(entry: Entry, read: Callable[[dict[str, Any]], object]) -> bool:
    try:
        read(entry.decision)
    except _OTHERS:
        return False
    return True
