"""What every backend answers about one plan: how long a step takes, how busy the devices are, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from strata.decision import Trust


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a plan, as it would run.

    chunks: first and last layer of each chunk; more than one where stages interleave.
    """

    domain: str
    accelerator: str
    first_layer: int
    num_layers: int
    chunks: tuple[tuple[int, int], ...]
    tensor_parallel: int
    replicas: int
    forward_s: float
    backward_s: float
    memory_bytes: float
    memory_limit_bytes: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """One training step of a plan.

    step_time_s: time between two optimizer steps, extra tokens of DiLoCo included (eta × time).
    utilization: useful device-seconds / reserved device-seconds: bubbles, waits, recomputation and
        communication count as idle (facts: arXiv 2104.04473 reports the same as a share of peak).
    cost_usd_per_step: devices and egress; None where a domain has no price.
    breakdown_s: compute, bubble, wan and sync, adding up to step_time_s; empty unless asked for.
    """

    step_time_s: float
    tokens_per_s: float
    utilization: float
    wan_bytes_per_step: float
    egress_usd_per_step: float
    cost_usd_per_step: float | None
    cost_usd_per_mtoken: float | None
    num_devices: int
    stages: tuple[StageReport, ...]
    trust: Trust
    breakdown_s: Mapping[str, float]

    @property
    def fits_memory(self) -> bool:
        """Whether every stage fits its devices, headroom included."""
        return all(stage.memory_bytes <= stage.memory_limit_bytes for stage in self.stages)

    def lasting(self, step_time_s: float, *, times_sent: float = 1.0) -> StepReport:
        """Return the report of the same step when it takes another time; its bytes are sent `times_sent` times."""
        slower, tokens = step_time_s / self.step_time_s, self.tokens_per_s * self.step_time_s
        egress, cost = self.egress_usd_per_step * times_sent, self.cost_usd_per_step
        if cost is not None:
            cost = (cost - self.egress_usd_per_step) * slower + egress
        return replace(
            self,
            step_time_s=step_time_s,
            tokens_per_s=tokens / step_time_s,
            utilization=self.utilization / slower,
            wan_bytes_per_step=self.wan_bytes_per_step * times_sent,
            egress_usd_per_step=egress,
            cost_usd_per_step=cost,
            cost_usd_per_mtoken=None if cost is None else cost / tokens * 1e6,
            breakdown_s={},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {**asdict(self), "fits_memory": self.fits_memory, "trust": str(self.trust)}
