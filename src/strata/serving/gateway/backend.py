"""What a driver does to nodes, in two kinds: our own workers (`workers.py`) and whole engines (`engines.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import httpx

from strata.serving.gateway.openai import ApiError, GenerationRequest
from strata.serving.gateway.request_stream import RequestStream
from strata.serving.live.instructions import Dispatch, Load, Release
from strata.serving.request import RequestSignal
from strata.serving.tokens import TextStream, TokenDecoder


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended: well (`finish`), broken off (`error` and who is suspected, if anybody), or with a
    fault of the request itself that no other attempt would mend, unless another may be luckier (`may_retry`).
    """

    finish: str | None = None
    error: str = ""
    suspect: str | None = None
    fault: ApiError | None = None
    may_retry: bool = False
    is_clean: bool = False
    """Whether nothing of it is left on any node."""


class BackendClient(ABC):
    """Talks to the nodes of one model. `urls` by node id is kept by whoever hears them join, and by the driver.

    default_tokens: of an answer where the client left it open. silence_s: longest wait for anything of an answer.
    """

    def __init__(self, client: httpx.AsyncClient, *, default_tokens: int, silence_s: float) -> None:
        self.client, self.default_tokens, self.silence_s = client, default_tokens, silence_s
        self.urls: dict[str, str] = {}

    @abstractmethod
    async def admit(self, request: GenerationRequest, request_id: str) -> tuple[RequestSignal, tuple[int, ...]]:
        """Return what the scheduler is told of a request, and its prompt. Raises ApiError where it never fits."""

    def decoder(self, prompt: tuple[int, ...]) -> TokenDecoder:
        """Return what makes text of the tokens of an answer; engines write text."""
        return TextStream()

    @abstractmethod
    async def attempt(self, stream: RequestStream, dispatch: Dispatch) -> AttemptResult:
        """Run a request along a route into its stream. Never raises for a node's sake."""

    @abstractmethod
    async def abort(self, node_ids: list[str], request_id: str, attempt: int) -> None:
        """Stop what still runs of an attempt, as far as nodes can be reached."""

    async def park(self, stream: RequestStream, attempt: int, *, is_kept: bool = True) -> None:
        """Stop an attempt of workers, and have them keep what they have cached of it; or keep it no longer."""
        raise AssertionError(f"attempt {attempt} of {stream.request_id} is no worker's")

    async def load(self, order: Load) -> None:
        """Tell a node to load layers."""
        raise AssertionError(f"{order.node_id} is never cut")

    async def release(self, order: Release) -> None:
        """Tell a node to forget layers."""
        raise AssertionError(f"{order.node_id} is never cut")


async def lines_of(chunks: AsyncIterator[bytes], *, most_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield lines that are not empty. Raises ValueError where one is longer than anything that should come."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > most_bytes:
            raise ValueError(f"a line is longer than {most_bytes} bytes")
        for line in filter(None, lines):
            yield line
