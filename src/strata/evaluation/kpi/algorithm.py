"""Row `algorithm`: whether the shipped policy was trained by PPO, and whether PPO made it better.

Updates alone count for nothing: their gain on held-out tables and worlds, with its interval above zero, does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from strata.decision import Trust
from strata.evaluation.kpi.kpi import Kpi
from strata.evaluation.kpi.study import Study

FIGURES: Final = ("updates", "steps", "elapsed_s", "device", "workers", "commit", "evaluation",
           "imitation_gain", "ppo_gain")  # fmt: skip
"""What the training record says that belongs beside the name of the algorithm."""


def measure(study: Study) -> Kpi:
    """Return the row, read from the policy's training record."""
    record = study.policy.record
    gain = record.get("ppo_gain") or {}
    return Kpi(
        name="algorithm",
        definition="algorithm whose updates made the policy in use better than it was before the first of them, "
        "held out, the 95 % interval of the gain above zero; by its training record",
        baseline="the policy before the first update: what imitation made of the hysteresis rule of margin 0.5",
        value=_trained_by(study),
        target="PPO",
        sense="is",
        ci95=(gain.get("low"), gain.get("high")),
        instances=1,
        guards={name: record[name] for name in FIGURES if name in record}
        | {"before_the_first_update": _first(record), "notes": [str(note) for note in study.policy.notes]},
        trust=Trust.MEASURED,
    )


def _trained_by(study: Study) -> str:
    if study.policy.session is None:
        return "none: the safe rule"
    record = study.policy.record
    # The weights of the best evaluation ship: that may be the first one, before any update.
    updates = record.get("evaluation", {}).get("update", record.get("updates"))
    if updates is None:
        return "not recorded"
    if not updates:
        return "imitation"
    gain = record.get("ppo_gain")
    if not gain:
        return "PPO, its gain not measured"
    return "PPO" if gain["low"] > 0 else "PPO, no gain shown"


def _first(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first point of the curve: what imitation reached before PPO."""
    curve = record.get("curve") or [None]
    first: Mapping[str, Any] | None = curve[0]
    return first
