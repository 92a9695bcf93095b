"""A finding: what is wrong where in a policy, how bad that is, and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from strata.decision import Reason
from strata.host.policy.policy import Layer, Match
from strata.reasons import LAYERS_ACCEPTED_WRONG, LAYERS_DOUBTFUL, LAYERS_REFUSED, LAYERS_REMARKS

Severity = Literal["error", "warning", "note"]

SEVERITY: Final[dict[str, Severity]] = {
    **dict.fromkeys((*LAYERS_REFUSED, *LAYERS_ACCEPTED_WRONG), "error"),
    **dict.fromkeys(LAYERS_DOUBTFUL, "warning"),
    **dict.fromkeys(LAYERS_REMARKS, "note"),
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
