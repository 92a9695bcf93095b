"""What runs in a replay: attempts at requests, nodes with the ranges they serve, and the paths along them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from strata.serving.layout import Line, Route, StageServer
from strata.serving.planning.allocation import Pipeline, Stage


@dataclass(slots=True, eq=False)
class ReplayAttempt:
    """A request on a route: tokens to read, tokens to generate, and how far it is.

    target: where the path's count of tokens will stand when it is done. cached_tokens: of its prompt, not to be
    read. left_tokens: still to be read, each token_s long; alone_s: of a step that reads only, besides its tokens;
    onward_s: from there to the first token.
    """

    request_id: str
    number: int
    route: Route
    read_tokens: int
    new_tokens: int
    cached_tokens: int = 0
    state: Literal["reading", "passing", "decoding", "over"] = "reading"
    path: Path | None = None
    reader: ReplayNode | None = None
    left_tokens: float = 0.0
    token_s: float = 0.0
    alone_s: float = 0.0
    onward_s: float = 0.0
    target: float = 0.0


@dataclass(slots=True, eq=False)
class ReplayServer:
    """A range of layers on a machine and the sequences it decodes; `depth`: stages of its pipeline.

    context_tokens: what these have cached, all together.
    """

    lines: StageServer
    depth: int
    count: int = 0
    context_tokens: float = 0.0

    @property
    def rounds(self) -> int:
        """Microbatches of a decode step."""
        return min(self.depth, self.count)

    @property
    def round_s(self) -> float:
        """Seconds of one microbatch of a decode step."""
        return self.lines.decode_s(self.count / self.rounds, self.context_tokens / self.rounds)


@dataclass(slots=True, eq=False)
class ReplayNode:
    """One node: what it decodes and reads, and how busy it was; `heads` are requests whose route begins here.

    work_s: of decode in a step, chunk_s: of prompts; read_tokens_per_s: the pace of reading them.
    """

    node_id: str
    is_up: bool = True
    factor: float = 1.0
    servers: dict[Stage, ReplayServer] = field(default_factory=dict)
    paths: dict[Path, None] = field(default_factory=dict)
    reading: deque[ReplayAttempt] = field(default_factory=deque)
    heads: dict[str, None] = field(default_factory=dict)
    work_s: float = 0.0
    chunk_s: float = 0.0
    chunk_tokens: int = 0
    read_tokens_per_s: float = 0.0
    load: float = 0.0
    busy_s: float = 0.0
    since_s: float = 0.0
    timing: int = 0

    def integrate(self, now_s: float) -> None:
        """Move on to now at the pace of the last retiming."""
        passed_s, self.since_s = now_s - self.since_s, now_s
        self.busy_s += passed_s * self.load
        if self.reading:
            self.reading[0].left_tokens -= passed_s * self.read_tokens_per_s


@dataclass(slots=True, eq=False)
class Path:
    """A chain of stages that requests run along. `tokens` counts what each of its sequences has generated.

    context_tokens: what all of them have cached. growth_s: by how much a step gets longer with each step.
    """

    stages: Pipeline
    servers: tuple[StageServer, ...]
    machines: tuple[ReplayNode, ...]
    ring: Line
    onward: Line
    closing: Line
    count: int = 0
    tokens: float = 0.0
    context_tokens: float = 0.0
    step_s: float = 0.0
    growth_s: float = 0.0
    hop_s: float = 0.0
    since_s: float = 0.0
    timing: int = 0
    targets: list[tuple[float, int, ReplayAttempt]] = field(default_factory=list)
    number: int = 0
    passed_tokens: float = 0.0
    decode_s: float = 0.0
    decode_hop_s: float = 0.0

    def integrate(self, now_s: float) -> None:
        """Move on to now at the pace of the last retiming."""
        passed_s, self.since_s = now_s - self.since_s, now_s
        if self.step_s and self.count:
            steps = passed_s / self.step_s
            self.tokens += steps
            self.context_tokens += steps * self.count
            self.passed_tokens += steps * self.count
            self.decode_s += passed_s * self.count
            self.decode_hop_s += steps * self.hop_s * self.count

    def retime(self) -> None:
        """Find how long a step takes now; 0 where it never ends."""
        self.step_s = self.growth_s = self.hop_s = 0.0
        if not self.count or not all(machine.is_up for machine in self.machines):
            return
        slowest_s = chain_s = 0.0
        for machine, stage in zip(self.machines, self.stages, strict=True):
            server = machine.servers[stage]
            slowest_s = max(slowest_s, machine.work_s + machine.chunk_s)
            chain_s += machine.factor * server.round_s
            if server.lines.curve is not None:
                self.growth_s += machine.factor * server.lines.curve.cached_token_s * server.count
        self.hop_s = self.ring.at(self.count / min(len(self.stages), self.count))
        self.step_s = max(slowest_s, chain_s + self.hop_s)
