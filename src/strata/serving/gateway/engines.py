"""Whole engines behind one address (vLLM, SGLang, any OpenAI server): text in, text out, one slot count each.

Requests go to them as they came, but for the model's name; what they write comes back under our ids. Their prompts
are not tokenised here: a token is taken as four bytes, which only queueing and admission see (assumed).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import httpx

from strata.serving.gateway.backend import AttemptResult, BackendClient, lines_of
from strata.serving.gateway.openai import ApiError, GenerationRequest, Usage
from strata.serving.gateway.request_stream import RequestStream
from strata.serving.live.instructions import Dispatch
from strata.serving.request import RequestSignal

log = logging.getLogger(__name__)

TOKEN_BYTES: Final = 4
POLL_TIMEOUT_S: Final = 5.0
BUSY_S: Final = 0.1
"""Pause after an engine has said no, twice as long each time: at once it would say so again."""
EVENT_BYTES: Final = 2**20
DOCUMENT_BYTES: Final = 2**26


class Engines(BackendClient):
    """The engines that serve one model, each of which ends a request whose connection closes.

    `broken` is set of one that broke a request off. `continues`: those that go on with an answer of a chat. An
    answer without stream is silent to its end.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        *,
        default_tokens: int,
        silence_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(client, default_tokens=default_tokens, silence_s=silence_s)
        self._sleep = sleep
        self.broken = defaultdict[str, asyncio.Event](asyncio.Event)
        self.continues = set[str]()

    def admit(self, request: GenerationRequest, request_id: str) -> tuple[RequestSignal, tuple[int, ...]]:
        """Return the request with its length, estimated. Raises ApiError for what JSON cannot hold."""
        try:
            json.dumps(request.body, allow_nan=False)
        except ValueError:
            # Refused here: at the engine's door it would look like the engine's fault.
            raise ApiError(400, "a number is not finite", "invalid_value") from None
        prompt_tokens = len(request.tokens) or len(request.text.encode(errors="replace")) // TOKEN_BYTES + 1
        signal = RequestSignal(
            request_id,
            prompt_tokens=prompt_tokens,
            max_tokens=request.token_limit or self.default_tokens,
            priority=request.priority or 0,
        )
        return signal, ()

    async def attempt(self, stream: RequestStream, dispatch: Dispatch) -> AttemptResult:
        """Relay a request; one that has begun goes on elsewhere only where that is the same text."""
        node_id = dispatch.route.stages[0].node_id
        url = self.urls.get(node_id)
        if url is None:
            return AttemptResult(error=f"{node_id} has left", suspect=node_id)
        request = stream.request
        if stream.num_generated and not self._may_go_on(stream, node_id in self.continues):
            why = "the engine's connection broke, and no other engine can continue this answer"
            return AttemptResult(fault=ApiError(502, why, "engine-lost"), is_clean=True)
        path = "/v1/chat/completions" if request.kind == "chat" else "/v1/completions"
        content, timeout = json.dumps(_body(stream)), httpx.Timeout(POLL_TIMEOUT_S, read=self.silence_s)
        try:
            async with self.client.stream("POST", url + path, content=content, timeout=timeout) as answer:
                if answer.status_code >= 500 or answer.status_code in (408, 429):
                    # It is alive and refuses: another engine may accept, and this one is not counted as dead.
                    await answer.aclose()
                    await self._sleep(BUSY_S * 2 ** (dispatch.attempt - 1))
                    return AttemptResult(error=f"{node_id} answered {answer.status_code}", is_clean=True)
                if answer.status_code >= 400:
                    body = await _document(answer)
                    refusal = ApiError(
                        answer.status_code, "the engine refused the request", "engine-refused", body=body
                    )
                    return AttemptResult(fault=refusal, is_clean=True)
                if not request.stream:
                    document = json.loads(await _document(answer))
                    _count(stream, document)
                    stream.num_generated = stream.usage.completion_tokens
                    stream.put(document)
                    stream.note_token()
                    return AttemptResult(finish="stop", is_clean=True)
                return await _relay(stream, answer.aiter_bytes())
        except (httpx.HTTPError, ValueError) as error:
            self.broken[node_id].set()
            fault = None
            has_others = bool(self.continues - {node_id})
            if stream.num_generated and not self._may_go_on(stream, has_others):  # it would wait in vain
                fault = ApiError(502, f"the engine's connection broke: {type(error).__name__}", "engine-lost")
            return AttemptResult(error=f"{node_id}: {type(error).__name__}: {error}", suspect=node_id, fault=fault)

    def _may_go_on(self, stream: RequestStream, continues: bool) -> bool:
        """Return whether prompt and text so far ask an engine for the rest of the same text.

        As one prompt of a plain completion; as a chat whose last message is open, where the engine takes such. Not
        where counts or masks over the whole answer (penalties, grammars, log probabilities) would begin anew. A
        chat's template may cut white space off the end of a message.
        """
        request = stream.request
        if request.extra:
            return False
        if request.kind == "completion":
            return not request.tokens
        return continues and stream.is_plain and not stream.text[-1:].isspace()

    async def abort(self, node_ids: list[str], request_id: str, attempt: int) -> None:
        """Do nothing: the attempt's connection has closed."""


def _body(stream: RequestStream) -> dict[str, Any]:
    body = stream.request.body
    body.pop("priority", None)  # ours: queues here, not there
    if stream.request.stream:
        body["stream_options"] = {"include_usage": True} | (body.get("stream_options") or {})
    if not stream.num_generated:
        return body
    if stream.request.kind == "completion":
        body["prompt"] = stream.request.text + stream.text
    else:
        body["messages"] = [*body["messages"], {"role": "assistant", "content": stream.text}]
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    if stream.request.token_limit is not None:
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = max(1, stream.request.token_limit - stream.num_generated)
    return body


async def _relay(stream: RequestStream, chunks: AsyncIterator[bytes]) -> AttemptResult:
    finish = "stop"
    async for line in lines_of(chunks, most_bytes=EVENT_BYTES):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return AttemptResult(finish=finish, is_clean=True)
        chunk = json.loads(data)
        if "error" in chunk:
            fault = ApiError(502, "the engine failed", "engine-failed", body=data)
            return AttemptResult(fault=fault, is_clean=True)
        choices = chunk.get("choices") or []
        if choices:
            stream.note_token()
            finish = choices[0].get("finish_reason") or finish
            delta = choices[0].get("delta") or {}
            if stream.num_resumed:
                delta.pop("role", None)  # the message has begun
            stream.is_plain &= not any(value for key, value in delta.items() if key not in ("role", "content"))
            text = choices[0].get("text") or delta.get("content") or ""
            if text:
                stream.text += text
                stream.num_generated += 1
        _count(stream, chunk)
        if choices or (chunk.get("usage") and stream.request.has_usage):
            stream.put(chunk)
        await stream.room()
    raise ValueError("no [DONE]")


def _count(stream: RequestStream, answer: dict[str, Any]) -> None:
    """Take the engine's count of tokens; of an answer that goes on, what came before was prompt to this engine."""
    if not (usage := answer.get("usage")):
        return
    before = stream.num_resumed
    stream.engine_usage = Usage(int(usage["prompt_tokens"]) - before, int(usage["completion_tokens"]) + before)
    if before:
        answer["usage"] = stream.engine_usage.to_dict()


async def _document(answer: httpx.Response) -> bytes:
    """Return a whole body. Raises ValueError for one that is too large."""
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > DOCUMENT_BYTES:
            raise ValueError("the answer is too long")
    return bytes(body)
