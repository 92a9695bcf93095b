"""What a driver does to nodes, in two kinds: our own workers (`workers.py`) and whole engines (`engines.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from strata.serving.gateway.request_stream import ApiError, GenerationRequest, RequestStream
from strata.serving.live.instructions import Dispatch, Load, Release
from strata.serving.request import RequestSignal


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended: well (`finish`), broken off (`error` and who is suspected, if anybody), or with a
    fault of the request itself that no other attempt would mend.
    """

    finish: str | None = None
    error: str = ""
    suspect: str | None = None
    fault: ApiError | None = None
    is_clean: bool = False
    """Whether nothing of it is left on any node."""


class BackendClient(Protocol):
    """Talks to the nodes of one model."""

    def admit(self, request: GenerationRequest, request_id: str) -> tuple[RequestSignal, tuple[int, ...]]:
        """Return what the scheduler is told of a request, and its prompt. Raises ApiError where it never fits."""

    async def attempt(
        self, stream: RequestStream, dispatch: Dispatch, first_token: Callable[[], None]
    ) -> AttemptResult:
        """Run a request along a route into its stream; `first_token` is called once. Never raises for a node's
        sake.
        """

    async def abort(self, node_ids: list[str], request_id: str, attempt: int) -> None:
        """Stop what still runs of an attempt, as far as nodes can be reached."""

    async def load(self, order: Load) -> None:
        """Tell a node to load layers."""

    async def release(self, order: Release) -> None:
        """Tell a node to forget layers."""
