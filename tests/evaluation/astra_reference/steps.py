"""One step of a pipeline as ASTRA-sim would report it, from times and sizes alone."""

from __future__ import annotations

from collections.abc import Sequence

from strata.evaluation.astra_reference.pipeline_slots import pipeline_ns, warmups
from strata.simulate.compat.network import FifoLink, Path


def astra_compatible_step(
    *,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    message_bytes: Sequence[float],
    bandwidth_bytes_per_s: Sequence[float],
    latency_s: Sequence[float],
    microbatches: int,
    order: str | Sequence[int] = "1f1b",
) -> float:
    """Return the seconds ASTRA-sim would report for one pipeline step, every cut one link each way.

    forward_s, backward_s [S], one microbatch on one stage; message_bytes, bandwidth_bytes_per_s, latency_s
    [S-1], one message over one cut. order: gpipe, 1f1b, or the forwards before the first backward of each
    stage [S]. Computes are rounded to whole microseconds, messages truncated to whole nanoseconds. Only the
    pipeline: no gradient sum, no update. Unlike in network.yml, every cut may have its own link.
    """

    def path(source: int, dest: int) -> Path:
        cut = min(source, dest)
        # Seconds in binary: without the 1e-6 ns, 0.0011 s would be truncated to 1,099,999 ns.
        serial_ns = message_bytes[cut] / bandwidth_bytes_per_s[cut] * 1e9 + 1e-6
        return (FifoLink((source, dest), int(serial_ns), int(latency_s[cut] * 1e9 + serial_ns)),)

    result = pipeline_ns(
        [round(each * 1e6) for each in forward_s],
        [round(each * 1e6) for each in backward_s],
        path,
        microbatches=microbatches,
        warmup=warmups(order, len(forward_s), microbatches),
    )
    return result * 1e-9
