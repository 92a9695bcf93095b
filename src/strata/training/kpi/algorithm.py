"""Row `algorithm`: whether the shipped policy was trained by PPO, and how much of it PPO is."""

from __future__ import annotations

from typing import Final

from strata.decision import Trust
from strata.training.kpi.kpi import Kpi
from strata.training.kpi.study import Study

FIGURES: Final = ("ppo_steps", "warm_start", "device", "seed", "returns", "ladder")
"""What the training record may say that belongs beside the name of the algorithm."""


def measure(study: Study) -> Kpi:
    """Return the row, read from the policy's training record."""
    record = study.policy.record
    trained = bool(record) and study.policy.session is not None
    return Kpi(
        name="algorithm",
        definition="algorithm that trained the policy in use, by its training record",
        baseline="none",
        value=str(record.get("algorithm", "PPO")).upper() if trained else "none (safe rule)",
        target="PPO",
        sense="is",
        ci95=(None, None),
        instances=1,
        guards={name: record[name] for name in FIGURES if name in record}
        | {"levels": 2, "safe_rule": "hysteresis, margin 0.5", "notes": [str(n) for n in study.policy.notes]},
        trust=Trust.MEASURED,
    )
