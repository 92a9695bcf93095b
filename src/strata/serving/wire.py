"""What gateway and workers say to each other over HTTP: the one place where it is written down.

Worker to gateway: POST /nodes/join (JoinMessage, answered by Desired), /nodes/heartbeat (HeartbeatMessage,
answered by Desired; 409 with `join-again` where the node is unknown), /nodes/leave (LeaveMessage), /nodes/loaded
(LoadedMessage).
Gateway to worker: POST /load (RangeMessage), /release (ReleaseMessage), /generate (GenerateMessage, answered by
lines of JSON, each a GenerateLine), /abort (AbortMessage); GET /healthz.
Worker to worker: GET /steps, upgraded to frames (`net/frames.py`), whose kinds and rows are in `worker/steps.py`:
a sequence is opened once along its stages (OpenMessage), then steps carry a row of integers and float32
activations each, several sequences a frame. What goes wrong (FaultMessage) travels back the same way; who
dies with a step in hand is seen at once, by its closed connection, who hangs by its silence. The last worker
sends tokens to the first, the closing hop.

Layers count the model's blocks from 0: who has the first also embeds, who has the last also has the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from strata.net.tls import client_context

if TYPE_CHECKING:
    import httpx

Name = Annotated[str, Field(min_length=1, max_length=200)]
Resource = Annotated[str, Field(pattern="^(cpu|memory|gpu|gpu_memory)$")]
"""What of a worker's machine may be in use."""
Count = Annotated[int, Field(ge=0, le=10**9)]
Handle = Annotated[int, Field(ge=0, lt=2**32)]
"""A number that stands for a sequence in frames."""
Incarnation = Annotated[int, Field(ge=0, lt=2**63)]
"""Grows with every start of a worker: milliseconds of its clock, then."""
Phase = Literal["prefill", "decode"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def node_client(token: str, authority: Path | None = None) -> httpx.AsyncClient:
    """Return a client for JSON that carries a token, where there is one; any number of requests may wait on it.

    authority: certificates to believe besides the system's. Raises UsageError.
    """
    import httpx

    from strata.net.asyncio_backend import transport

    # No proxy of the environment: nodes are near.
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    return httpx.AsyncClient(transport=transport(client_context(authority)), headers=headers, trust_env=False)


class Message(BaseModel):
    """Frozen; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeMessage(Message):
    """From a node. A later start of it has a larger incarnation."""

    node_id: Name
    incarnation: Incarnation


class AttemptMessage(Message):
    """About one attempt at a request."""

    request_id: Name
    attempt: Count


class RangeMessage(Message):
    """Layers [first, end) of a plan; to be loaded beside what is served."""

    version: Count
    first: Count
    end: Count


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measurement of a node: layers [first, end) took so long.

    units: sequences of a decode step, tokens of a prompt; context: tokens already cached, mean over sequences.
    """

    phase: Phase
    first: Count
    end: Count
    units: Count
    context: Annotated[float, Field(ge=0)]
    seconds: Seconds


class JoinMessage(NodeMessage):
    """A worker is there; `model` only for a whole pipeline behind one address (vLLM, SGLang).

    samples: what a block of the model took, measured before.
    """

    url: str
    compute_capability: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    memory_bytes: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    memory_bandwidth_bytes_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    region: str = ""
    model: str = ""
    step_sequences: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Most sequences that it decodes in one step; no bound where it says none."""
    fingerprint: str = ""
    """Digest of the model's shape and seed: a worker of another model must not join."""
    samples: tuple[StepSample, ...] = ()


class HeartbeatMessage(NodeMessage):
    """A sign of life. `peers`: addresses the worker should know are in the answer; hop_s: one-way, measured.

    is_stuck: the process lives, but its layers have stood still for longer than a step may take.
    usage: shares of its machine in use.
    """

    running: tuple[Name, ...] = ()
    loaded: tuple[Count, ...] = ()
    hop_s: dict[str, Seconds] = Field(default_factory=dict)
    samples: tuple[StepSample, ...] = ()
    is_stuck: bool = False
    usage: dict[Resource, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)


class LeaveMessage(NodeMessage):
    """Good-bye."""


class LoadedMessage(NodeMessage):
    """The layers of a plan are ready."""

    version: Count


class Desired(Message):
    """What a worker should hold, and whom it should measure its distance to (node id to address)."""

    ranges: tuple[RangeMessage, ...] = ()
    peers: dict[str, str] = Field(default_factory=dict)
    heartbeat_interval_s: Annotated[float, Field(gt=0)]


class ReleaseMessage(Message):
    """Forget a plan's layers."""

    version: Count


class StageMessage(Message):
    """One stop of a route, and the plan whose layers it uses there: a route may join parts of several."""

    version: Count
    node_id: Name
    url: str
    first: Count
    end: Count


class KeptMessage(Message):
    """What an earlier attempt left: keys and values of its first `tokens`, on the workers of its route."""

    attempt: Count
    tokens: Annotated[int, Field(ge=1, le=10**9)]
    stages: Annotated[tuple[StageMessage, ...], Field(min_length=1)]


class GenerateMessage(AttemptMessage):
    """To the first worker of a route.

    generated: tokens of earlier attempts; it goes on from there, with what the last has kept where there is
    something. max_tokens: of all attempts together.
    """

    stages: Annotated[tuple[StageMessage, ...], Field(min_length=1)]
    prompt: Annotated[tuple[Count, ...], Field(min_length=1)]
    generated: tuple[Count, ...] = ()
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: Count = 0
    stop_tokens: tuple[Count, ...] = ()
    kept: KeptMessage | None = None


class GenerateLine(Message):
    """One line of the answer: a token, or the end (`stop`, `length`), or an error and the node suspected."""

    token: Count | None = None
    finish: Literal["stop", "length"] | None = None
    error: str | None = None
    node_id: str | None = None


class AbortMessage(AttemptMessage):
    """Stop an attempt. is_kept: to the first worker; what all have cached waits for the next attempt."""

    is_kept: bool = False


class OpenMessage(AttemptMessage):
    """Begins a sequence at a worker. `sequence` is its number in the frames of this connection from then on.

    stages: the receiver and those after it. first_url, drive: where tokens go, and for which of its sequences.
    kv_tokens: what the attempt may come to keep.
    """

    sequence: Handle
    stages: Annotated[tuple[StageMessage, ...], Field(min_length=1)]
    first_url: str
    drive: Handle
    kv_tokens: Count
    temperature: float = 0.0
    seed: Count = 0
    kept: KeptMessage | None = None


class KvMessage(AttemptMessage):
    """Asks for the keys and values of an attempt's first `tokens` in one block of the model."""

    layer: Count
    tokens: Annotated[int, Field(ge=1, le=10**9)]


class FaultMessage(Message):
    """Why a sequence does not get through, and the node suspected; None where all are well (no memory, say)."""

    error: str
    node_id: str | None = None
    sequence: Handle = 0
