"""What moved from one answer's plan to another's: its figures, what each domain does, and the reasons given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strata.decision import Reason


@dataclass(frozen=True, slots=True)
class DomainWork:
    """What a plan gives one domain: its devices, and its share of all layers of all tokens."""

    num_devices: int
    share: float


Works = Mapping[str, DomainWork]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What moved from an old plan to a new one.

    figures: by key of the stable JSON form; ratios are new / old, None where a side has none. domains: (old, new)
    work of every domain that either plan uses. appeared, gone: reasons of one decision only, told apart by token
    and subject. text: the one sentence for people.
    """

    same_plan: bool
    figures: Mapping[str, Any]
    domains: Mapping[str, tuple[DomainWork | None, DomainWork | None]]
    appeared: tuple[Reason, ...]
    gone: tuple[Reason, ...]
    text: str = ""

    @property
    def domains_added(self) -> list[str]:
        """Domains that only the new plan uses."""
        return [name for name, (old, _) in self.domains.items() if old is None]

    @property
    def domains_removed(self) -> list[str]:
        """Domains that only the old plan uses."""
        return [name for name, (_, new) in self.domains.items() if new is None]

    @property
    def moves(self) -> str:
        """Which domains leave and which join, in words; "" where none does."""
        moves = ((self.domains_removed, "leave"), (self.domains_added, "join"))
        moved = [f"{', '.join(names)} {verb}{'s' if len(names) == 1 else ''}" for names, verb in moves if names]
        return " and ".join(moved)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form, without the sentence."""
        return {
            **self.figures,
            "same_plan": self.same_plan,
            "domains_added": self.domains_added,
            "domains_removed": self.domains_removed,
            "domains": {
                name: {"old": asdict(old) if old else None, "new": asdict(new) if new else None}
                for name, (old, new) in self.domains.items()
            },
            "reasons_appeared": [reason.to_dict() for reason in self.appeared],
            "reasons_gone": [reason.to_dict() for reason in self.gone],
        }


def compared(
    works: tuple[Works, Works],
    reasons: tuple[Iterable[Reason], Iterable[Reason]],
    *,
    domains: Iterable[str],
    same_plan: bool,
    figures: Mapping[str, Any],
) -> Comparison:
    """Compare (old, new) work, in the order of `domains`, and the reasons of both decisions."""
    # That a plan was chosen is the same, whichever it is.
    old, new = ({(r.token, "" if r.token == "chosen" else r.subject): r for r in side} for side in reasons)
    return Comparison(
        same_plan=same_plan,
        figures=figures,
        domains={
            name: (works[0].get(name), works[1].get(name))
            for name in dict.fromkeys(domains)
            if name in works[0] or name in works[1]
        },
        appeared=tuple(reason for key, reason in new.items() if key not in old),
        gone=tuple(reason for key, reason in old.items() if key not in new),
    )


def ratio(old: float | None, new: float | None) -> float | None:
    """Return new / old; None where a side has no figure or the old one is nothing."""
    return new / old if old and new is not None else None
