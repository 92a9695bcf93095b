"""A finding: what is wrong where in a policy, how bad that is, and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from strata.decision import Reason
from strata.host.policy.policy import Layer, Match

Severity = Literal["error", "warning", "note"]

REFUSED: Final = (
    "policy-unreadable",
    "policy-size",
    "catch-all-missing",
    "matches-empty",
    "matches-too-many",
    "match-text-too-long",
    "match-value-range",
    "hint-misused",
    "cpus-range-wrong",
    "util-range-wrong",
    "regex-wrong",
    "template-unsupported",
    "template-misused",
    "numa-node-spread",
    "place-absent",
    "cpu-ids-have-holes",
)
"""What scx_layered refuses itself, most of it only after it was started."""

ACCEPTED_WRONG: Final = (
    "key-unknown",
    "catch-all-early",
    "layer-shadowed",
    "match-never",
    "match-text-panics",
    "layer-name-panics",
    "cgroup-path-form",
    "template-idle",
    "kthread-inverted",
    "util-range-percent",
    "perf-too-high",
    "cpus-minima-exceed",
    "protected-leaves-none",
)
"""What it takes without a word, and then dies of or does the opposite of what was meant."""

DOUBTFUL: Final = (
    "key-ignored",
    "key-deprecated",
    "match-shadowed",
    "protected-can-take-all",
    "open-preempt-protected",
    "topology-ignored",
    "gpu-catches-loaders",
    "gpu-needs-flag",
    "perf-no-schedutil",
    "exclusive-no-smt",
    "membw-no-monitor",
    "membw-no-cap",
    "xnuma-inverted",
    "preempt-unlimited",
    "preempt-first-alone",
    "weight-clamped",
    "yield-ignore-range",
    "util-range-unreached",
    "layer-no-cpus",
    "layer-name-twice",
    "slice-too-long",
)
"""What it takes and does not do, or does in another way than it reads."""

REMARKS: Final = ("open-limits-early", "hint-needs-map", "pid-stale", "cgroup-prefix-open")
"""What is right, with something to know."""

SEVERITY: Final[dict[str, Severity]] = {
    **dict.fromkeys(REFUSED + ACCEPTED_WRONG, "error"),
    **dict.fromkeys(DOUBTFUL, "warning"),
    **dict.fromkeys(REMARKS, "note"),
}


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One thing in a policy. Its reason's subject is the path, as in `[0].matches[1][0].CommPrefix`."""

    reason: Reason

    @property
    def severity(self) -> Severity:
        """Return how bad it is; each token has one severity."""
        return SEVERITY[self.reason.token]

    def to_dict(self) -> dict[str, str]:
        """Return the stable JSON form."""
        sentence = str(self.reason).removeprefix(f"{self.reason.subject}: ")
        path = self.reason.subject
        return {"token": self.reason.token, "path": path, "severity": self.severity, "sentence": sentence}


def finding_at(token: str, path: str, **data: Any) -> LintFinding:
    """Return a finding at a path."""
    return LintFinding(Reason(token, path, data))


@dataclass(frozen=True, slots=True)
class Place:
    """A layer and where it stands in its file."""

    index: int
    layer: Layer

    @property
    def path(self) -> str:
        """Return the layer's path."""
        return f"[{self.index}]"

    def key(self, name: str) -> str:
        """Return the path of a key of its kind."""
        return f"{self.path}.kind.{type(self.layer.kind).__name__}.{name}"

    def block(self, number: int) -> str:
        """Return the path of one of its match blocks."""
        return f"{self.path}.matches[{number}]"

    def conditions(self) -> Iterator[tuple[str, Match]]:
        """Yield each condition with its path."""
        for number, block in enumerate(self.layer.matches):
            for place, match in enumerate(block):
                yield f"{self.block(number)}[{place}].{match.kind}", match
