"""Whether a report names the culprit that was there: precision and recall over trials with a known one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from strata.host.analysis.findings.finding import Severity
from strata.host.analysis.report import TraceReport
from strata.host.machine.steal import Steal

TRAINER: Final = "trainer_main"
DISTURBED: Final = 0.05
"""Of a quiet run's CPUs: if someone has more, it is not quiet (a wait of 5 % is a warning). Whatever the priority:
threads of a hundredth of the trainer's weight that had 17 % of its CPUs held it up for 5 % (measured)."""
NO_ONE: Final = frozenset({"steal-time"})
"""Findings that a quiet run may raise: that the hypervisor takes CPUs away is true, whatever else runs."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was done to a host: the fault, and how a report may call its culprit (nothing: a quiet run).

    `trainer` is who suffers. `steal` is what a hypervisor took meanwhile; None: nothing can.
    """

    fault: str
    seed: int
    injected: frozenset[str] = frozenset()
    trainer: str = TRAINER
    steal: Steal | None = None


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """A trial and the culprit that was named, "" for none; `tokens` are the findings of warning or above.

    Of the time of the trainer's CPUs, by who ran there: `culprit` is the culprit's share, `others` the largest of
    anyone who has nothing to do with the trial.
    `tries` is how often it was made.
    """

    trial: Trial
    named: str
    tokens: tuple[str, ...] = ()
    others: float = 0.0
    culprit: float = 0.0
    tries: int = 1

    @property
    def is_disturbed(self) -> bool:
        """Whether someone else had these CPUs for longer than the culprit, or a quiet one's: not scored."""
        return self.others > (self.culprit if self.trial.injected else DISTURBED)

    @property
    def is_right(self) -> bool:
        """Whether the culprit was named, or none where there was none."""
        return self.named in self.trial.injected if self.trial.injected else NO_ONE.issuperset(self.tokens)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "fault": self.trial.fault,
            "seed": self.trial.seed,
            "injected": sorted(self.trial.injected),
            "named": self.named,
            "tokens": list(self.tokens),
            "culprit_share": round(self.culprit, 4),
            "others_share": round(self.others, 4),
            "tries": self.tries,
            "is_right": self.is_right,
        }


@dataclass(frozen=True, slots=True)
class DiagnosisScore:
    """Over all outcomes: of the culprits named the share that was there, of those there the share named.

    A quiet run with a warning counts as a culprit that was not there. `outcomes` are those that were scored;
    without any both are None. `disturbed` counts runs that were not, `skipped` says which fault could not be
    made here, and why.
    """

    precision: float | None
    recall: float | None
    outcomes: tuple[TrialOutcome, ...]
    disturbed: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        missed = [outcome.to_dict() for outcome in self.outcomes if not outcome.is_right]
        return {
            "precision": self.precision,
            "recall": self.recall,
            "runs": len(self.outcomes),
            "disturbed": self.disturbed,
            "skipped": [{"fault": fault, "reason": reason} for fault, reason in self.skipped.items()],
            "missed": missed,
        }


def outcome_of(
    trial: Trial, report: TraceReport, *, others: float = 0.0, culprit: float = 0.0, tries: int = 1
) -> TrialOutcome:
    """Return what a report says: the culprit of its first finding of warning or above that names one."""
    serious = [finding for finding in report.findings if finding.severity.rank >= Severity.WARNING.rank]
    named = next((finding.culprit for finding in serious if finding.culprit), "")
    return TrialOutcome(trial, named, tuple(finding.token for finding in serious), others, culprit, tries)


def score(outcomes: Sequence[TrialOutcome], *, skipped: Mapping[str, str] | None = None) -> DiagnosisScore:
    """Return precision and recall; both are 1 where nothing was injected and nothing named."""
    scored = [outcome for outcome in outcomes if not outcome.is_disturbed]
    disturbed = sum(outcome.tries for outcome in outcomes) - len(scored)
    injected = [outcome for outcome in scored if outcome.trial.injected]
    named = [outcome for outcome in scored if (outcome.named if outcome.trial.injected else not outcome.is_right)]
    right = sum(outcome.is_right for outcome in injected)
    if not scored:
        return DiagnosisScore(None, None, (), disturbed, skipped or {})
    precision = right / len(named) if named else 1.0
    recall = right / len(injected) if injected else 1.0
    return DiagnosisScore(precision, recall, tuple(scored), disturbed, skipped or {})
