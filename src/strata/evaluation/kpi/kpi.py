"""One row of the KPI table: what is measured, against what, and how sure the figure is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from strata.decision import Trust
from strata.stats import Interval

OF_THE_POLICY: Final = ("untrained", "never", "no_network_seen")
"""Ways that are the policy without something: without what it learned, without switching, without the network."""

Sense = Literal["at least", "at most", "below", "is"]

NAMES: Final = (
    "algorithm",
    "pareto_coverage",
    "inter_domain_latency_s",
    "intra_domain_latency_s",
    "training_time_reduction",
    "utilization_improvement",
    "communication_cost_reduction",
    "coordination_time_s",
    "allocation_error",
    "load_stability",
    "network_degradation",
)
"""The eleven rows of seed 000 §3, in its order; stable."""


@dataclass(frozen=True, slots=True)
class Kpi:
    """One row. value and target in the unit of the name (a share where it names none); `sense` compares them.

    ci95: of the value over instances, None where it has no interval. instances: how many it was measured on.
    beside: the same figure by other ways to decide, by name: OF_THE_POLICY, and what else one could run.
    guards: what a sceptic would ask for beside the value, by name; `passes_only_against` among them where the
    target is met against the named baseline and missed against stronger ones.
    """

    name: str
    definition: str
    baseline: str
    value: float | str | None
    target: float | str
    sense: Sense
    ci95: tuple[float | None, float | None]
    instances: int
    guards: Mapping[str, Any]
    trust: Trust
    beside: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether the value keeps its target; a row without a value does not."""
        return self._keeps(self.value)

    @property
    def met_without(self) -> list[str]:
        """The ways beside the policy that keep the target, too: what is met is then not to the policy's credit."""
        return [name for name, value in self.beside.items() if value is not None and self._keeps(value)]

    @property
    def strongest(self) -> str | None:
        """The best of what stands beside, the policy's own parts left out."""
        others = {name: v for name, v in self.beside.items() if name not in OF_THE_POLICY and v is not None}
        best = max if self.sense == "at least" else min
        return best(others, key=lambda name: others[name], default=None)

    def _keeps(self, value: float | str | None) -> bool:
        if value is None or isinstance(value, str) or isinstance(self.target, str):
            return value == self.target
        match self.sense:
            case "at least":
                return value >= self.target
            case "at most":
                return value <= self.target
            case "below":
                return value < self.target
            case "is":
                return value == self.target

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form: no NaN, no numpy."""
        low, high = self.ci95
        plain: dict[str, Any] = jsonable(
            {
                "name": self.name,
                "definition": self.definition,
                "baseline": self.baseline,
                "value": self.value,
                "target": self.target,
                "sense": self.sense,
                "met": self.met,
                "met_without": self.met_without,
                "beside": self.beside,
                "strongest": self.strongest,
                "ci95": [low, high],
                "instances": self.instances,
                "guards": self.guards,
                "trust": str(self.trust),
            }
        )
        return plain


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    """Return the ends of an interval as a row holds them; an infinite end is None."""
    if interval is None:
        return None, None
    low, high = interval.low, interval.high
    return low if math.isfinite(low) else None, high if math.isfinite(high) else None


def summary(sample: ArrayLike) -> dict[str, float | None]:
    """Return mean, median, 5th and 95th percentile and the extremes of a sample, None of an empty one."""
    values = np.asarray(sample, dtype=np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return dict.fromkeys(("mean", "median", "p5", "p95", "least", "most"))
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "p5": float(np.quantile(values, 0.05)),
        "p95": float(np.quantile(values, 0.95)),
        "least": float(values.min()),
        "most": float(values.max()),
    }


def jsonable(value: Any) -> Any:
    """Return plain dicts, lists and numbers; what is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [jsonable(inner) for inner in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
