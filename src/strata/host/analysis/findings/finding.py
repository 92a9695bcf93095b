"""What a detector finds: what happened, the evidence, its cost, who did it, what to do, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from strata.decision import Reason, Trust
from strata.host.analysis.culprit import as_culprit
from strata.host.analysis.view import TraceView
from strata.host.threads.processes import Process
from strata.reasons import REASONS


class Severity(StrEnum):
    """How much a finding matters, least first."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Return 0 for the least."""
        return list(Severity).index(self)


WARNING_SHARE: Final = 0.05
ERROR_SHARE: Final = 0.25
WORTH_SHARE: Final = 0.005
"""Of a critical thread's life in the trace: from which cost on a finding is a warning, an error, worth a line
(assumed: a step is hardly ever measured to 0.5 %, and 5 % is what the roll-outs of seed 004 were made for)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `thread` is who suffers (name and id; "" and 0 for the whole host), `culprit` who does it.

    `cost_ms`: what it cost that thread within the trace; `culprit_share`: the culprit's part of that, 0 to 1.
    `confidence`: 0 to 1. `span_ns`: when it was worst. `process`: the culprit's, where it is known.
    """

    reason: Reason
    severity: Severity
    evidence: str
    cost_ms: float
    confidence: float
    thread: str = ""
    tid: int = 0
    culprit: str = ""
    cost_share: float = 0.0
    span_ns: tuple[int, int] | None = None
    culprit_share: float = 1.0
    process: Process | None = None

    @property
    def token(self) -> str:
        """The stable name of what was found."""
        return self.reason.token

    @property
    def advice(self) -> str:
        """What to do about it."""
        return REASONS[self.token].remedy

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "token": self.token,
            "severity": str(self.severity),
            "thread": self.thread,
            "tid": self.tid,
            "what": str(self.reason),
            "evidence": self.evidence,
            "cost_ms": round(self.cost_ms, 3),
            "cost_share": round(self.cost_share, 4),
            "culprit": as_culprit(self.culprit).comm,
            "culprit_process": {**self.process.to_dict(), "job": self.process.job} if self.process else None,
            "advice": self.advice,
            "confidence": round(self.confidence, 2),
        }


def severity_of(share: float) -> Severity:
    """Return how much a cost matters that is this share of a critical thread's life."""
    return (
        Severity.ERROR if share >= ERROR_SHARE else Severity.WARNING if share >= WARNING_SHARE else Severity.INFO
    )


def of_thread(
    view: TraceView,
    task: int,
    token: str,
    data: Mapping[str, Any],
    *,
    cost_ms: float,
    evidence: str,
    confidence: float,
    culprit: str = "",
    span_ns: tuple[int, int] | None = None,
    worst: Severity = Severity.ERROR,
    culprits: Mapping[str, float] | None = None,
) -> Finding:
    """Return what a critical thread suffers; its severity follows from the share of its life that it cost.

    Without a `culprit` it is the main one of the `culprits`: who had how much of the cost (none: the culprit all);
    without a `span_ns` it was worst in the thread's longest wait. Events that were lost, or a thread that is
    critical only by a guess, make it less sure; a guess is never more than a remark.
    """
    share = cost_ms * 1e6 / float(view.lived_ns[task])
    severity = min(severity_of(share), Severity.INFO if view.is_guessed else worst, key=lambda level: level.rank)
    name = view.name(task)
    culprit = culprit or main_culprit(culprits or {})
    return Finding(
        Reason(token, name, data),
        severity,
        evidence,
        cost_ms,
        confidence * (0.6 if view.trace.lost or view.trace.backwards else 1.0) * (0.5 if view.is_guessed else 1.0),
        name,
        int(view.tasks.tid[task]),
        culprit,
        share,
        span_ns or worst_span(view, view.waits_by(task)),
        share_of(culprits, culprit) if culprits and culprit else 1.0,
        process_of(view, culprit),
    )


def process_of(view: TraceView, culprit: str) -> Process | None:
    """Return the process of a culprit, where a census saw it."""
    pid = as_culprit(culprit).pid
    return view.census.processes.get(pid) if pid is not None else None


def worst_span(view: TraceView, waits: Any) -> tuple[int, int] | None:
    """Return the longest of some waits."""
    if not len(waits):
        return None
    longest = waits[int(view.delays.length_ns[waits].argmax())]
    return int(view.delays.start_ns[longest]), int(view.delays.end_ns[longest])


def listed(culprits: Mapping[str, float]) -> str:
    """Return the worst culprits in words: `python 12.1 ms, cc1plus 3.0 ms`."""
    return ", ".join(f"{name} {ms:,.1f} ms" for name, ms in list(culprits.items())[:3])


def main_culprit(culprits: Mapping[str, float]) -> str:
    """Return the worst culprit that is someone: idle and unknown are not.

    Threads of like names count together, `kworker` for kworker/0:1 and kworker/1:2, unless one of them had most.
    """
    pools: dict[str, dict[str, float]] = defaultdict(dict)
    for name, ms in culprits.items():
        if not name.startswith("("):
            pools[as_culprit(name).pool][name] = ms
    worst = max(pools, key=lambda pool: sum(pools[pool].values()), default="")
    return most_of(pools[worst], worst) if worst else ""


def most_of(held: Mapping[str, float], pool: str) -> str:
    """Return who of a pool held more than half of what all of it did, else the pool."""
    first = max(held, key=held.__getitem__, default=pool)
    return first if held.get(first, 0.0) > sum(held.values()) / 2 else pool


def share_of(culprits: Mapping[str, float], culprit: str) -> float:
    """Return the share that a culprit, or the pool of that name, has of all."""
    if culprit in culprits:
        held = culprits[culprit]
    else:
        held = sum(ms for name, ms in culprits.items() if as_culprit(name).pool == culprit)
    return held / max(sum(culprits.values()), 1e-12)


LEAST_SHARE: Final = 0.01
"""Of its time that a thread is taken to need in any case: one that only waited would win without bound."""
_ASSUMED: Final = ("crosses-llc", "crosses-numa")
"""Findings whose cost is a number of moves times what one is assumed to cost."""


def without(cost_share: float) -> float:
    """Return how much more work fits in once a cost is gone: 1 for twice the work. `cost_share` is 0 to 1."""
    return 1.0 / max(1.0 - cost_share, LEAST_SHARE) - 1.0


MOST_TOLD: Final = 2.0
"""Gains past which no number is told: a thread that hardly ran might do anything once it runs."""


def in_words(gain: float) -> str:
    """Return how much work fits in: `up to 34% more work`."""
    return f"up to {gain:.0%} more work" if gain <= MOST_TOLD else "three times the work, or more"


def predicted_gain(finding: Finding) -> tuple[float, Trust] | None:
    """Return by what share the thread's throughput grows at most; None where no thread loses time."""
    if not finding.thread or finding.cost_share <= 0:
        return None
    trust = Trust.ASSUMED if finding.token in _ASSUMED else Trust.ANALYTIC
    return without(finding.cost_share), trust
