"""Whether an interrupted request takes along what it has cached, or is computed anew: by what each would take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from strata.decision import Trust
from strata.serving.layout import Layout
from strata.serving.planning.allocation import Pipeline
from strata.workload.inference import ModelInfo


@dataclass(frozen=True, slots=True)
class HandOver:
    """Both ways until the next token begins [s], and the bytes that would move.

    moves_s: infinite where the cache cannot be moved, since a window has passed over what the next token needs.
    """

    moves_s: float
    recomputes_s: float
    kv_bytes: float

    @property
    def is_chosen(self) -> bool:
        """Whether to move."""
        return self.moves_s < self.recomputes_s

    def to_dict(self) -> dict[str, Any]:
        """Return what a request's timeline says of it."""
        return {
            "chosen": "move" if self.is_chosen else "recompute",
            "move_s": None if math.isinf(self.moves_s) else self.moves_s,
            "recompute_s": self.recomputes_s,
            "kv_bytes": self.kv_bytes,
            "trust": Trust.ANALYTIC.value,
        }


def hand_over(
    model: ModelInfo, layout: Layout, old: Pipeline, new: Pipeline, *, prompt_tokens: int, generated: int
) -> HandOver:
    """Return what moving the keys and values of a request from one pipeline to another takes, and computing them.

    To move: workers of the new pipeline fetch at the same time, each a layer at a time, there and back; bytes at
    the bandwidth of the link. To compute: the prompt at once, what was generated one by one, as workers replay it.
    """
    tokens = prompt_tokens + generated - 1
    layer_bytes = model.kv_bytes(tokens)
    is_short = bool((model.kv_bytes(tokens + 1) > layer_bytes).all())  # no window is full
    slowest_s = 0.0
    for stage in new:
        stage_s = 0.0
        for source in old:
            layers = range(max(stage.first, source.first), min(stage.end, source.end))
            hop = layout.hop(source.node_id, stage.node_id)
            stage_s += sum(2 * hop.fixed_s + hop.per_unit_s * layer_bytes[i] / model.hidden_bytes for i in layers)
        slowest_s = max(slowest_s, stage_s)
    servers = {server.node_id: server for server in layout.servers}
    ring_s = layout.ring([stage.node_id for stage in new]).at(1)
    prompt_s = sum(servers[stage.node_id].prefill.at(prompt_tokens) for stage in new) + ring_s
    token_s = sum(servers[stage.node_id].decode.at(1) for stage in new)
    recomputes_s = prompt_s + generated * token_s
    return HandOver(float(slowest_s) if is_short else math.inf, float(recomputes_s), float(layer_bytes.sum()))
