"""How busy a worker's machine is: its processors since the last look, its memory, its GPU with the layers.

Of the machine and not of the worker alone: what else runs there is what slows it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

PROC: Final = Path("/proc")


class MachineUsage:
    """Shares in use, 0 to 1; what the machine does not tell is left out."""

    def __init__(self, device: str, proc: Path = PROC) -> None:
        self._device, self._proc = device, proc
        self._before = self._ticks()

    def shares(self) -> dict[str, float]:
        """Return `cpu`, `memory` and of a GPU `gpu` and `gpu_memory`."""
        before, self._before = self._before, self._ticks()
        idle, total = (now - then for now, then in zip(self._before, before, strict=True))
        lines = (self._proc / "meminfo").read_text(encoding="ascii").splitlines()
        kib = {name: float(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        shares: dict[str, float] = {"memory": 1.0 - kib["MemAvailable"] / kib["MemTotal"]}
        if total > 0:
            shares["cpu"] = min(1.0, max(0.0, 1.0 - idle / total))
        return shares | (_gpu() if self._device == "cuda" else {})

    def _ticks(self) -> tuple[int, int]:
        """Return the processors' idle and all their time since the start (proc(5), stat: idle and iowait)."""
        fields = (self._proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
        ticks = [int(field) for field in fields]
        return ticks[3] + ticks[4], sum(ticks)


def _gpu() -> dict[str, float]:
    free, total = torch.cuda.mem_get_info()
    shares: dict[str, float] = {"gpu_memory": 1.0 - free / total}
    with suppress(ModuleNotFoundError, RuntimeError):  # no nvidia-ml-py, or a driver that does not say
        shares["gpu"] = torch.cuda.utilization() / 100.0
    return shares
