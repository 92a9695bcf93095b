"""Whole engines behind one address (vLLM, SGLang, any OpenAI server): text in, text out, one slot count each.

Requests go to them as they came, but for the model's name; what they write comes back under our ids. Their prompts
are not tokenised here: a token is taken as four bytes, which only queueing and admission see (assumed).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import httpx

from strata.serving.gateway.backend import AttemptResult, BackendClient
from strata.serving.gateway.connections import EngineAnswer, EngineConnections
from strata.serving.gateway.openai import ApiError, GenerationRequest, Writer
from strata.serving.gateway.pace import Pace
from strata.serving.gateway.relay import EngineFailed, Relay, error_of, usage_of
from strata.serving.gateway.request_stream import RequestStream
from strata.serving.live.instructions import Dispatch
from strata.serving.request import RequestSignal
from strata.serving.routing.prefix import block_hashes, text_hashes

log = logging.getLogger(__name__)

TOKEN_BYTES: Final = 4
CONNECT_S: Final = 5.0
END_S: Final = 0.2
BUSY_S: Final = 0.1
"""Pause after an engine has said no, twice as long each time: at once it would say so again."""
DOCUMENT_BYTES: Final = 2**26
ODD_NUMBER: Final = re.compile(rb"NaN|Infinity|\d[eE]\+?\d{3}|\d{300}")
"""What may not be finite once it is read."""
ODD_FIELD: Final = re.compile(rb'"(?:n|seed|max_tokens|max_completion_tokens)"\s*:\s*-?\d+[.eE]')
ODD_TOKEN: Final = re.compile(rb"\d[.eE]")
"""What may be a whole number that an engine would not take for one, among fields and among a prompt's tokens."""


class Engines(BackendClient):
    """The engines that serve one model, each of which ends a request whose connection closes.

    `broken` is set of one that broke a request off. `continues`: those that go on with an answer of a chat.
    paces: what the streams of each show of its work. kv_tokens: what each of `urls` has room for.
    answer_s: longest wait for an answer without stream, which is silent to its end. client: for short questions;
    connections: for requests.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        connections: EngineConnections,
        *,
        default_tokens: int,
        silence_s: float,
        answer_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(client, default_tokens=default_tokens, silence_s=silence_s)
        self.connections, self.answer_s, self._sleep = connections, answer_s, sleep
        self.broken = defaultdict[str, asyncio.Event](asyncio.Event)
        self.continues = set[str]()
        self.paces = defaultdict[str, Pace](lambda: Pace(silence_s))
        self.kv_tokens = dict[str, int]()

    async def admit(self, request: GenerationRequest, request_id: str) -> tuple[RequestSignal, tuple[int, ...]]:
        """Return the request with its length, estimated. Raises ApiError for what JSON cannot hold."""
        try:
            if ODD_NUMBER.search(request.raw):
                json.dumps(request.body, allow_nan=False)
        except ValueError:
            # Refused here: at the engine's door it would look like the engine's fault.
            raise ApiError(400, "a number is not finite", "invalid_value") from None
        text = request.text.encode(errors="replace")
        prompt_tokens = len(request.tokens) or len(text) // TOKEN_BYTES + 1
        limit = self.default_tokens if request.token_limit is None else request.token_limit
        # Whether it is too long an engine says, which counts tokens: estimates refuse nothing.
        most = max((self.kv_tokens[name] for name in self.urls), default=2**62)
        prompt_tokens = min(prompt_tokens, most - 1)
        signal = RequestSignal(
            request_id,
            prompt_tokens=prompt_tokens,
            max_tokens=min(max(1, limit) * request.num_choices, most - prompt_tokens),
            priority=request.priority or 0,
            blocks=block_hashes(request.tokens) or text_hashes(text, token_bytes=TOKEN_BYTES),
        )
        return signal, ()

    async def attempt(self, stream: RequestStream, dispatch: Dispatch) -> AttemptResult:
        """Relay a request; one that has begun goes on elsewhere only where that is the same text."""
        node_id = dispatch.route.stages[0].node_id
        url = self.urls.get(node_id)
        if url is None:
            return AttemptResult(error=f"{node_id} has left", suspect=node_id)
        request = stream.request
        if stream.has_text and not self._may_go_on(stream, node_id in self.continues):
            why = "the engine's connection broke, and no other engine can continue this answer"
            return AttemptResult(fault=ApiError(502, why, "engine-lost"), is_clean=True)
        relay, pace, number = Relay(stream), self.paces[node_id], (stream.request_id, dispatch.attempt)

        def due_s(since_s: float, gap_s: float) -> float:
            return pace.due_s(number, since_s, gap_s) if request.stream else since_s + self.answer_s

        pace.sent(number, stream.signal.prompt_tokens + stream.num_generated, asyncio.get_running_loop().time())
        try:
            async with self.connections.stream(
                url + request.path, _content(stream), connect_s=CONNECT_S, due_s=due_s
            ) as answer:
                if answer.status_code >= 400:
                    return await self._refused(answer, node_id, dispatch.attempt)
                if not request.stream:
                    _take_document(stream, await _document(answer))
                    return AttemptResult(finish="stop", is_clean=True)
                take = _taking(stream, relay, answer, pace, dispatch.attempt)
                while not (answer.is_whole or relay.is_over):
                    await answer.hand(take)
                    await stream.room()
                if not answer.is_whole:
                    with suppress(TimeoutError, httpx.HTTPError):
                        async with asyncio.timeout(END_S):
                            await answer.hand(lambda _: False)  # a connection read to its end is used again
            if request.kind != "other" and not relay.is_done:
                raise ValueError("the stream ended without a finish_reason")
            return AttemptResult(finish=relay.finish, is_clean=True)
        except EngineFailed as failed:
            return AttemptResult(fault=failed.fault, is_clean=True)
        except (httpx.HTTPError, ValueError) as error:
            if relay.is_done and request.kind != "other":  # all of it had come
                return AttemptResult(finish=relay.finish, is_clean=True)
            self.broken[node_id].set()
            fault = None
            has_others = bool(self.continues - {node_id})
            if stream.has_text and not self._may_go_on(stream, has_others):  # it would wait in vain
                is_silent = isinstance(error, httpx.ReadTimeout)
                why = str(error) if is_silent else f"its connection broke ({type(error).__name__})"
                fault = ApiError(502, f"the engine was lost in the middle of its answer: {why}", "engine-lost")
            return AttemptResult(error=f"{node_id}: {type(error).__name__}: {error}", suspect=node_id, fault=fault)
        finally:
            pace.gone(number)

    async def _refused(self, answer: EngineAnswer, node_id: str, attempt: int) -> AttemptResult:
        """Return an engine's refusal in its own words; it is alive, and another one may accept."""
        status, body = answer.status_code, await _document(answer)
        is_passing = (status >= 500 and status != 501) or status in (408, 429)
        refusal = ApiError(
            status,
            f"the engine answered {status}",
            "engine-failed" if is_passing else "engine-refused",
            retry_after_s=_seconds(answer.headers.get("retry-after")),
            body=error_of(body),
        )
        if is_passing:
            await self._sleep(BUSY_S * 2 ** (attempt - 1))
        return AttemptResult(
            error=f"{node_id} answered {status}", fault=refusal, may_retry=is_passing, is_clean=True
        )

    def _may_go_on(self, stream: RequestStream, continues: bool) -> bool:
        """Return whether prompt and text so far ask an engine for the rest of the same text.

        As one prompt of a plain completion; as a chat whose last message is open, where the engine takes such. Not
        where counts or masks over the whole answer (penalties, grammars, log probabilities) would begin anew. A
        chat's template may cut white space off the end of a message.
        """
        request = stream.request
        if request.extra or request.num_choices > 1 or request.kind == "other":
            return False
        if request.kind == "completion":
            return not request.tokens
        return continues and stream.is_plain and not stream.text[-1:].isspace()

    async def abort(self, node_ids: list[str], request_id: str, attempt: int) -> None:
        """Do nothing: the attempt's connection has closed."""


def _taking(
    stream: RequestStream, relay: Relay, answer: EngineAnswer, pace: Pace, attempt: int
) -> Callable[[bytes], bool]:
    """Return what takes an engine's pieces for a client, and says whether to go on."""
    number = stream.request_id, attempt

    def take(data: bytes) -> bool:
        pace.heard_s = answer.since_s
        if not stream.may_write(attempt):  # it was stopped, and does not know yet
            return False
        if stream.request.kind == "other":
            stream.is_plain = False
            stream.note_token()
            stream.put(data)
        else:
            if events := relay.feed(data):
                stream.put(events)
            # An engine may begin a message before it has read the prompt.
            has_text = stream.num_generated > stream.num_resumed or not stream.is_plain
            if has_text and pace.is_unread(number):
                pace.read(number, answer.since_s)
        return not (relay.is_over or stream.is_full)

    return take


def _content(stream: RequestStream) -> bytes:
    """Return what an engine is asked: the client's own bytes, where they need not say more."""
    request, is_told = stream.request, stream.request.model_fields_set
    is_more = "priority" in is_told or (request.stream and "stream_options" in is_told)
    raw = request.raw
    is_odd = ODD_FIELD.search(raw) or (request.tokens and ODD_TOKEN.search(raw))
    if stream.num_generated or is_more or is_odd:
        return json.dumps(_body(stream)).encode()
    if not request.stream or request.kind == "other":
        return raw
    return b'{"stream_options":{"include_usage":true},' + raw.lstrip()[1:]


def _body(stream: RequestStream) -> dict[str, Any]:
    body = stream.request.body
    body.pop("priority", None)  # ours: queues here, not there
    if stream.request.stream and stream.request.kind != "other":
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


def _take_document(stream: RequestStream, body: bytes) -> None:
    """Take an answer that came whole. Raises ValueError for one that is no JSON object."""
    if stream.request.kind != "other":
        answer = json.loads(body)
        if not isinstance(answer, dict):
            raise ValueError("the answer is no object")
        if usage := usage_of(answer):
            stream.engine_usage, stream.num_generated = usage, usage.completion_tokens
        writer = Writer(stream.request, stream.request_id, stream.created)
        body = json.dumps(writer.relayed(answer, is_chunk=False)).encode()
    stream.put(body)
    stream.note_token()


def _seconds(text: str | None) -> float | None:
    """Return the seconds of a Retry-After; a date counts as not said."""
    return float(text) if text and text.isascii() and text.isdigit() else None


async def _document(answer: EngineAnswer) -> bytes:
    """Return a whole body. Raises ValueError for one that is too large."""
    body = bytearray()

    def take(piece: bytes) -> bool:
        body.extend(piece)
        if len(body) > DOCUMENT_BYTES:
            raise ValueError("the answer is too long")
        return True

    await answer.hand(take)
    return bytes(body)
