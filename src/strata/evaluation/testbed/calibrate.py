"""What this machine does to the figures of a cost model, measured on other plans and links than are predicted.

Three things: seconds per layer, with as many processes computing as there are domains and none waiting; how long a
message takes on links of other bandwidths and latencies; and how much of a link gloo's sums reach there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from strata.evaluation.testbed.crew import Crew
from strata.evaluation.testbed.namespaces import LinkShape, Namespaces
from strata.evaluation.testbed.plans import MICROBATCH_SIZE, MODEL, build_plan
from strata.training.export.launch import launch_data
from strata.training.export.ranks import RankLayout, rank_map
from strata.workload.plan import TrainingPlan

_OTHER_LINKS: Final = ((0.5, 0.5), (1.7, 1.5))
"""Factors on the bandwidth and latency to be predicted: on both sides of it, never the same."""

_MESSAGE_BYTES: Final = (20_000, 100_000, 400_000)
_SUM_BYTES: Final = (3_000_000, 12_000_000)
_SUM_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class LinkSample:
    """A message (or a sum) on a link: its bytes, the link, and the seconds it took beyond the link's latency."""

    num_bytes: float
    bandwidth_bytes_per_s: float
    beyond_latency_s: float


@dataclass(frozen=True, slots=True)
class MachineCalibration:
    """Measured figures of one machine, all **measured**.

    forward_s, backward_s, update_s: per layer, of microbatches of `microbatch_size`; update_s of one step.
    message_overhead_s: of one message, beyond bytes and latency. message_share, sum_share: the part of a link's
    bandwidth that messages and gradient sums reach.
    """

    microbatch_size: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    message_overhead_s: float
    message_share: float
    sum_share: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def calibrate(crew: Crew, network: Namespaces, shape: LinkShape) -> MachineCalibration:
    """Measure everything; leaves the links with another shape than they had."""
    # In several rounds: whatever else slows the machine for a second or two is then outvoted.
    rounds, messages, sums = _time_layers(crew, len(network.names)), [], []
    for faster, farther in _OTHER_LINKS:
        other = LinkShape(shape.bandwidth_bytes_per_s * faster, shape.latency_s * farther)
        network.shape(other)
        for size in _MESSAGE_BYTES:
            answers = crew.ask("messages", num_bytes=size, warmup=2, count=7)
            # There and back: the latency and the overhead twice, the bytes once.
            messages.append(_sample(size, other, answers[0]["seconds"], latencies=2))
        for size in _SUM_BYTES:
            answers = crew.ask("sums", num_bytes=size, parts=_SUM_PARTS, warmup=1, count=3)
            # A ring's bytes on each link are 2 (D-1)/D of the sum's (Thakur et al. 2005, §4.4).
            count = len(network.names)
            on_link = 2 * (count - 1) / count * size
            sums.append(_sample(on_link, other, answers[0]["seconds"], latencies=2 * (count - 1)))
        rounds += _time_layers(crew, len(network.names))
    forward_s, backward_s, update_s = _layers(rounds)
    overhead_s, message_share = fit_link(messages)
    return MachineCalibration(
        MICROBATCH_SIZE, forward_s, backward_s, update_s,
        message_overhead_s=overhead_s / 2, message_share=message_share, sum_share=fit_link(sums)[1],
    )  # fmt: skip


def fit_link(samples: Sequence[LinkSample]) -> tuple[float, float]:
    """Return (overhead [s], share of the bandwidth) of seconds = overhead + bytes / (share × bandwidth).

    Least squares of the relative errors, so that short messages count as much as long ones; the overhead is not
    below 0.
    """
    at_rate = np.array([sample.num_bytes / sample.bandwidth_bytes_per_s for sample in samples])
    took = np.array([sample.beyond_latency_s for sample in samples])
    weight = 1 / took
    matrix = np.stack([weight, at_rate * weight], axis=1)
    overhead, per_nominal = np.linalg.lstsq(matrix, np.ones_like(took), rcond=None)[0]
    if overhead < 0:
        overhead, per_nominal = 0.0, float(np.sum(at_rate * weight) / np.sum((at_rate * weight) ** 2))
    return float(overhead), float(1 / per_nominal)


def launch_of(plan: TrainingPlan) -> dict[str, Any]:
    """Return what `ranks.json` of an exported plan holds."""
    names = plan.domains
    layout = RankLayout(plan, dict.fromkeys(names, 1), dict.fromkeys(names, 1), dict.fromkeys(names, "cpu"))
    return launch_data(rank_map(layout), plan)


def _sample(num_bytes: float, shape: LinkShape, seconds: Sequence[float], *, latencies: int) -> LinkSample:
    beyond = float(np.median(seconds)) - latencies * shape.latency_s
    return LinkSample(num_bytes, shape.bandwidth_bytes_per_s, max(beyond, 1e-6))


def _time_layers(crew: Crew, domains: int) -> list[dict[str, Any]]:
    """Let every process work alone through the whole model."""
    alone = {**launch_of(build_plan("dp", domains)), "data_groups": [], "pipeline_groups": []}
    return crew.ask("layers", launch=alone, size=asdict(MODEL), warmup=1, count=2)


def _layers(answers: Sequence[dict[str, Any]]) -> tuple[tuple[float, ...], ...]:
    """Return forward, backward and update seconds of each layer: medians, blocks averaged as they are alike."""
    figures = []
    for key in ("forward_s", "backward_s"):
        each = np.concatenate([np.array(answer[key]) for answer in answers])  # [microbatches, L]
        typical = np.median(each, axis=0)
        typical[1:-1] = typical[1:-1].mean()
        figures.append(tuple(typical.tolist()))
    update = float(np.median(np.concatenate([answer["update_s"] for answer in answers])))
    params = MODEL.layers().params
    figures.append(tuple((update * params / params.sum()).tolist()))
    return tuple(figures)
