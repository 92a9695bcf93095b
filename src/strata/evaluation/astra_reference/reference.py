"""A table of ASTRA-sim runs held against our own answers, row by row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from strata.errors import BadFile, Fault, UsageError
from strata.evaluation.astra_reference.case import (
    COLUMNS,
    AstraCase,
    CollectiveRun,
    LlmRun,
    PipelineRun,
    Send,
    read_case,
)
from strata.evaluation.astra_reference.difference import default_pipeline_ns
from strata.evaluation.astra_reference.llm import llm_step_ns
from strata.evaluation.astra_reference.pipeline_slots import pipeline_ns, warmups
from strata.evaluation.astra_reference.refusals import why_doubtful, why_not
from strata.files import read_text
from strata.simulate.compat.groups import group_ns, path, ring_ns, send_ns
from strata.simulate.compat.hierarchy import collective_ns
from strata.simulate.compat.network import Path

Row = Mapping[str, str | None]

SCALE_ONLY: Final = "llm"
"""The family that shows ASTRA-sim's scale; its rows say little of their traces. In no score but its own."""
IDLE_NS: Final = 1000
"""The one compute node of 1 us that ranks without traffic run in the reference."""


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """What we say to one row, and what ASTRA-sim said.

    ours_ns: None where ASTRA-sim or we have no answer, `reason` says why. doubt: why ASTRA-sim's answer, which
    ours repeats, is not what such a network would do. default_ns: what our own model says instead, of a
    pipeline. expected_ns: None where the table does not say, or the run did not end well.
    """

    row: int
    scenario: str
    topology: str
    backend: str
    ours_ns: int | None
    reason: str | None
    doubt: str | None
    default_ns: int | None
    expected_ns: int | None

    @property
    def family(self) -> str:
        """The first part of the scenario: all_reduce, wan, twodim, pp..."""
        head, slash, _ = self.scenario.partition("/")
        match = re.match(r"[A-Za-z]+", head)
        return head if slash or not match else match[0]

    @property
    def error(self) -> float | None:
        """Our relative error where ASTRA-sim has an answer; 1 where we have none (of a family that counts)."""
        if self.expected_ns is None or (self.ours_ns is None and self.family == SCALE_ONLY):
            return None
        return abs((self.ours_ns or 0) - self.expected_ns) / self.expected_ns


@dataclass(frozen=True, slots=True)
class ReferenceScore:
    """How many rows were held against ASTRA-sim, how many are equal to the nanosecond, the worst error."""

    rows: int
    exact: int
    worst: float


def score(answers: Iterable[ReferenceAnswer]) -> ReferenceScore:
    """Return the score of the answers whose expected value is known; 0 of 0 where none is."""
    errors = [answer.error for answer in answers if answer.error is not None]
    return ReferenceScore(len(errors), errors.count(0.0), max(errors, default=0.0))


def read_rows(path: str) -> list[dict[str, str | None]]:
    """Read a reference table. Raises UsageError or BadFile, naming the columns that are missing."""
    try:
        table = csv.DictReader(read_text(path).splitlines(), strict=True)
        rows = list(table)
    except csv.Error as error:
        raise BadFile([Fault(path, f"not CSV: {error}")]) from None
    missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
    if missing:
        raise BadFile([Fault(path, f"no column {name!r}", line=1, column=1) for name in missing])
    return [{str(name): cell for name, cell in row.items()} for row in rows]


def answers(rows: Iterable[Row]) -> list[ReferenceAnswer]:
    """Answer every row of a reference table; `reported_ns` is never looked at for it."""
    return [_answer(index, row) for index, row in enumerate(rows)]


def _answer(index: int, row: Row) -> ReferenceAnswer:
    ours, reason, doubt, default = None, None, None, None
    status = row.get("status") or "ok"
    try:
        case = read_case(row)
        reason = why_not(case)
        if reason is None:
            ours, doubt = astra_ns(case), why_doubtful(case)
            if isinstance(case.traffic, PipelineRun):
                default = default_pipeline_ns(case, case.traffic)
    except UsageError as error:
        reason = str(error)
    if status != "ok" and reason is None:
        reason = f"this run ended with {status}; no reason known."
    reported = row.get("reported_ns") or ""
    expected = int(reported) if status == "ok" and reported.isdigit() and int(reported) > 0 else None
    return ReferenceAnswer(
        row=index,
        scenario=row.get("scenario") or "",
        topology=row.get("topology") or "",
        backend=row.get("backend") or "",
        ours_ns=ours,
        reason=reason,
        doubt=doubt,
        default_ns=default,
        expected_ns=expected,
    )


def astra_ns(case: AstraCase) -> int:
    """Return the nanoseconds ASTRA-sim reports: when the last rank has finished.

    Raises UsageError where no form is known; ask `why_not` first.
    """
    traffic, dimensions = case.traffic, case.dimensions
    if isinstance(traffic, CollectiveRun):
        return collective_ns(
            traffic.collective, traffic.algorithms,
            size_bytes=case.size_bytes, dimensions=dimensions, system=traffic.system,
        )  # fmt: skip
    if isinstance(traffic, Send):
        return max(IDLE_NS, send_ns(traffic.source, traffic.dest, case.size_bytes, dimensions))
    if isinstance(traffic, LlmRun):
        return llm_step_ns(traffic, message_bytes=case.size_bytes, dimensions=dimensions)
    if isinstance(traffic, PipelineRun):
        return _pipeline_ns(case, traffic)
    if traffic.is_flat:
        return ring_ns(
            traffic.collective, traffic.ranks,
            size_bytes=case.size_bytes, dimensions=dimensions, system=traffic.system, is_group=False,
        )  # fmt: skip
    taken = group_ns(
        traffic.collective, traffic.algorithm, traffic.ranks,
        size_bytes=case.size_bytes, dimensions=dimensions, system=traffic.system,
    )  # fmt: skip
    return max(IDLE_NS, taken)


def _pipeline_ns(case: AstraCase, run: PipelineRun) -> int:
    if len(case.dimensions) > 1:
        raise UsageError("a pipeline is known on one dimension, rank = stage")

    def way(source: int, dest: int) -> Path:
        return path(source, dest, case.size_bytes, case.dimensions)

    return pipeline_ns(
        [run.forward_us] * run.stages, [run.backward_us] * run.stages, way,
        microbatches=run.microbatches, warmup=warmups(run.order, run.stages, run.microbatches),
    )  # fmt: skip
