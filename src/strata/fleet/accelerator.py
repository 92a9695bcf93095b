"""One kind of accelerator: its published and measured figures, and how far each can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata.decision import Trust


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An accelerator as the operating system sees it: one allocatable device.

    None means the figure is not known or disputed; strata never fills it in. Rates are dense (no sparsity).
    `memory_bytes` is 0 where the memory is not known, so that nothing fits until somebody states it.
    `has_bf16`: whether it has units for bf16; `peak_flops` takes the rate of fp16 where it has none.
    `*_measured` figures were read off a real device by somebody who published how.
    """

    name: str
    vendor: str
    memory_bytes: float
    fp16_flops: float | None = None
    fp32_flops: float | None = None
    fp8_flops: float | None = None
    has_bf16: bool = True
    memory_bandwidth_bytes_per_s: float | None = None
    interconnect: str = ""
    interconnect_bytes_per_s: float | None = None
    fp16_flops_measured: float | None = None
    fp32_flops_measured: float | None = None
    memory_bandwidth_measured_bytes_per_s: float | None = None
    trust: Trust = Trust.ASSUMED
    source: str = ""
    aliases: tuple[str, ...] = field(default=())

    def peak_flops(self, precision: str) -> float | None:
        """Return the dense peak in a job's precision, None where it is not known or there is none [FLOP/s]."""
        return {"fp32": self.fp32_flops, "fp8": self.fp8_flops}.get(precision, self.fp16_flops)
