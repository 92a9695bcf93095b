"""What a driver does to nodes, in two kinds: our own workers (`workers.py`) and whole engines (`engines.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from strata.serving.gateway.request_stream import Ask, Fault, Ticket
from strata.serving.live.instructions import Dispatch, Load, Release
from strata.serving.request import RequestSignal


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended: well (`finish`), broken off (`error` and who is suspected, if anybody), or with a
    fault of the request itself that no other attempt would mend.
    """

    finish: str | None = None
    error: str = ""
    suspect: str | None = None
    fault: Fault | None = None
    is_clean: bool = False
    """Whether nothing of it is left on any node."""


class Hands(Protocol):
    """Talks to the nodes of one model."""

    def admit(self, ask: Ask, request_id: str) -> tuple[RequestSignal, tuple[int, ...]]:
        """Return what the scheduler is told of a request, and its prompt. Raises Fault for one that never fits."""

    async def attempt(self, ticket: Ticket, dispatch: Dispatch, first_token: Callable[[], None]) -> Ended:
        """Run a request along a route into its ticket; `first_token` is called once. Never raises for a node's
        sake.
        """

    async def abort(self, node_ids: list[str], request_id: str, attempt: int) -> None:
        """Stop what still runs of an attempt, as far as nodes can be reached."""

    async def load(self, order: Load) -> None:
        """Tell a node to load layers."""

    async def release(self, order: Release) -> None:
        """Tell a node to forget layers."""
