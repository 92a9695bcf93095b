"""The way from one worker to another, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from strata.serving.wire import AbortMessage, StepError, StepHeader, TokenMessage
from strata.serving.worker.holder import Key
from strata.serving.worker.stage import ChainError

if TYPE_CHECKING:
    import httpx

STEP_HEADER: Final = "strata-step"
CONNECT_LIMIT_S: Final = 3.0
SHORT_LIMIT_S: Final = 5.0
"""For messages that need no layer to run."""


def to_bytes(hidden: NDArray[np.float32]) -> bytes:
    """Return activations as they travel."""
    return hidden.astype("<f4", copy=False).tobytes()


def from_bytes(body: bytes, hidden_size: int) -> NDArray[np.float32]:
    """Return activations [T, D]. Raises ChainError where the bytes are no such thing."""
    if not body or len(body) % (4 * hidden_size):
        raise ChainError(
            f"{len(body)} bytes are not a whole number of activations of {hidden_size} float32 values"
        )
    return np.frombuffer(body, dtype="<f4").reshape(-1, hidden_size)


class HttpPeers:
    """Other workers behind their addresses."""

    def __init__(self, client: httpx.AsyncClient, *, node_id: str, step_limit_s: float) -> None:
        self._client, self._node_id, self._step_limit_s = client, node_id, step_limit_s

    async def step(self, header: StepHeader, hidden: Any) -> None:
        """Have the step done by the first of the header's stages and all after it."""
        dest = header.stages[0]
        await self._post(
            f"{dest.url}/step",
            content=to_bytes(hidden),
            headers={STEP_HEADER: header.model_dump_json(), "content-type": "application/octet-stream"},
            limit_s=self._step_limit_s * len(header.stages),
            suspect=dest.node_id,
        )

    async def token(self, url: str, message: TokenMessage) -> None:
        """Send a token to the first worker; who cannot is suspected, for the first one waits for it."""
        await self._json(f"{url}/token", message.model_dump_json(), suspect=self._node_id)

    async def abort(self, url: str, key: Key) -> None:
        """Have a worker free what an attempt holds."""
        message = AbortMessage(request_id=key.request_id, attempt=key.attempt)
        await self._json(f"{url}/abort", message.model_dump_json(), suspect=None)

    async def _json(self, url: str, text: str, *, suspect: str | None) -> None:
        headers = {"content-type": "application/json"}
        await self._post(url, content=text.encode(), headers=headers, limit_s=SHORT_LIMIT_S, suspect=suspect)

    async def _post(
        self, url: str, *, content: bytes, headers: dict[str, str], limit_s: float, suspect: str | None
    ) -> None:
        import httpx

        timeout = httpx.Timeout(limit_s, connect=min(CONNECT_LIMIT_S, limit_s))
        try:
            answer = await self._client.post(url, content=content, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise ChainError(f"{url}: {type(error).__name__}: {error}", suspect) from error
        if answer.is_success:
            return
        try:
            fault = StepError.model_validate_json(answer.content)
        except ValueError:
            raise ChainError(f"{url} answered {answer.status_code}", suspect) from None
        raise ChainError(fault.error, fault.node_id)
