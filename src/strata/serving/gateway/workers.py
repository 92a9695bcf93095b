"""Our own workers, as `wire.py` has them: tokens along a route of layer ranges."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

import httpx

from strata.serving import wire
from strata.serving.gateway.backend import AttemptResult, BackendClient, lines_of
from strata.serving.gateway.openai import ApiError, ChatRequest, GenerationRequest, small_model
from strata.serving.gateway.request_stream import RequestStream
from strata.serving.hosted import HostedModel
from strata.serving.live.instructions import Dispatch, Load, Release
from strata.serving.request import RequestSignal
from strata.serving.routing.prefix import block_hashes
from strata.serving.tokens import TokenDecoder, Tokenizer

log = logging.getLogger(__name__)

ORDER_TIMEOUT_S: Final = 10.0
SIGN_S: Final = 5.0
"""A stream that pauses for so long has its worker asked for a sign of life, given as long to come (assumed)."""
RETRIES_S: Final = (0.2, 1.0)
"""Pauses before an order is sent again; a node that missed it all the same learns of it by its next heartbeat."""
LONG_TEXT: Final = 10_000
"""Characters of a prompt that is made tokens in a thread: a megabyte takes seconds, and all streams would wait."""
LINE_BYTES: Final = 2**16
END_S: Final = 0.2
SEEDS: Final = 10**9


class Workers(BackendClient):
    """The workers of one model.

    They may be silent for long: workers notice of each other what is stuck. Of the first of a route the gateway
    asks for a sign of life where its stream pauses: heartbeats would say a minute later that it is cut off.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: HostedModel,
        tokenizer: Tokenizer,
        *,
        default_tokens: int,
        silence_s: float,
        sign_s: float = SIGN_S,
    ) -> None:
        super().__init__(client, default_tokens=default_tokens, silence_s=silence_s)
        self.model, self.tokenizer, self.sign_s = model, tokenizer, sign_s

    async def admit(self, request: GenerationRequest, request_id: str) -> tuple[RequestSignal, tuple[int, ...]]:
        """Return the request in tokens. Raises ApiError for what our own workers cannot do."""
        small_model(request)
        prompt = request.tokens
        if not prompt:
            is_long = len(request.text) > LONG_TEXT
            prompt = await asyncio.to_thread(self._encode, request) if is_long else self._encode(request)
        if not prompt:
            raise ApiError(400, "prompt: has no tokens", "invalid_value", param="prompt")
        if max(prompt) >= self.model.vocab_size:
            problem = f"tokens must be below {self.model.vocab_size}"
            raise ApiError(400, problem, "invalid_value", param="prompt")
        room, most = self.model.max_positions - len(prompt), self.model.max_positions
        if room < 1:
            problem = f"{len(prompt)} prompt tokens and one to generate exceed the limit of {most}"
            raise ApiError(400, problem, "context_length_exceeded", param="prompt")
        limit = request.token_limit
        max_tokens = min(self.default_tokens, room) if limit is None else limit
        if room < max_tokens:
            problem = f"{len(prompt)} prompt and {max_tokens} output tokens exceed the limit of {most}"
            raise ApiError(400, problem, "context_length_exceeded", param="max_tokens")
        signal = RequestSignal(
            request_id,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            priority=request.priority or 0,
            blocks=block_hashes(prompt),
        )
        return signal, prompt

    def _encode(self, request: GenerationRequest) -> tuple[int, ...]:
        if not isinstance(request, ChatRequest):
            return self.tokenizer.encode(request.text)
        try:
            return self.tokenizer.encode_chat(
                [{"role": message.role, "content": message.text} for message in request.messages]
            )
        except ValueError as error:
            raise ApiError(400, f"messages: {error}", "invalid_value", param="messages") from None

    def decoder(self, prompt: tuple[int, ...]) -> TokenDecoder:
        """Return what makes text of the tokens of an answer."""
        return self.tokenizer.decoder(prompt)

    async def attempt(self, stream: RequestStream, dispatch: Dispatch) -> AttemptResult:
        """Stream from the first worker of a route; go on from what its stream has."""
        stages = tuple(
            wire.StageMessage(version=version, node_id=name, url=self.urls.get(name, ""), first=first, end=end)
            for version, (name, first, end) in zip(dispatch.versions, dispatch.route.stages, strict=True)
        )
        head = stages[0]
        missing = next((stage.node_id for stage in stages if not stage.url), None)
        if missing:
            return AttemptResult(error=f"{missing} has left", suspect=missing)
        message = wire.GenerateMessage(
            request_id=stream.request_id,
            attempt=dispatch.attempt,
            stages=stages,
            prompt=stream.prompt,
            generated=tuple(stream.generated),
            max_tokens=stream.signal.max_tokens,
            temperature=1.0 if stream.request.temperature is None else stream.request.temperature,
            seed=_seed(stream),
            stop_tokens=self.tokenizer.stop_tokens,
            kept=_kept(stream, dispatch),
        )
        stream.sent = message
        timeout = httpx.Timeout(ORDER_TIMEOUT_S, read=self.silence_s)
        try:
            async with (
                self._watched(head.url, stream),
                self.client.stream(
                    "POST", f"{head.url}/generate", content=message.model_dump_json(), timeout=timeout
                ) as answer,
            ):
                if answer.status_code != 200:
                    return AttemptResult(
                        error=f"{head.node_id} answered {answer.status_code}", suspect=head.node_id
                    )
                async with aclosing(lines_of(answer.aiter_bytes(), most_bytes=LINE_BYTES)) as lines:
                    return await _read(
                        stream, lines, head.node_id, dispatch.attempt, vocab_size=self.model.vocab_size
                    )
        except (httpx.HTTPError, ValueError) as error:
            return AttemptResult(error=f"{head.node_id}: {type(error).__name__}: {error}", suspect=head.node_id)
        except TimeoutError:
            return AttemptResult(
                error=f"{head.node_id}: no sign of life within {self.sign_s:g} s", suspect=head.node_id
            )

    @asynccontextmanager
    async def _watched(self, url: str, stream: RequestStream) -> AsyncIterator[None]:
        """Raise TimeoutError inside where a stream pauses and its worker gives no sign of life."""

        async def watch(limit: asyncio.Timeout) -> None:
            while True:
                num_seen = stream.num_generated
                await asyncio.sleep(self.sign_s)
                if stream.num_generated == num_seen:
                    try:
                        await self.client.get(f"{url}/healthz", timeout=self.sign_s)
                    except httpx.HTTPError:
                        limit.reschedule(asyncio.get_running_loop().time())
                        return

        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(watch(limit))
            try:
                yield
            finally:
                watching.cancel()

    async def abort(self, node_ids: list[str], request_id: str, attempt: int) -> None:
        """Stop an attempt on all nodes of its route; a node that cannot be told notices by itself."""
        message = wire.AbortMessage(request_id=request_id, attempt=attempt)
        await asyncio.gather(*(self._tell(name, "abort", message, retries_s=()) for name in node_ids))

    async def park(self, stream: RequestStream, attempt: int, *, is_kept: bool = True) -> None:
        """Have an attempt's workers keep what they have cached, which the first tells the others; or forget it."""
        if stream.sent is None or stream.sent.attempt != attempt:
            return  # it never began, or another one has
        message = wire.AbortMessage(request_id=stream.request_id, attempt=attempt, is_kept=is_kept)
        urls = [stage.url for stage in stream.sent.stages]
        content = message.model_dump_json()
        for url in urls[:1] if is_kept else urls:
            try:
                await self.client.post(f"{url}/abort", content=content, timeout=ORDER_TIMEOUT_S)
            except httpx.HTTPError as error:
                log.info("%s did not take /abort: %s: %s", url, type(error).__name__, error)

    async def load(self, order: Load) -> None:
        """Tell a node to load a range."""
        message = wire.RangeMessage(version=order.version, first=order.first, end=order.end)
        await self._tell(order.node_id, "load", message)

    async def release(self, order: Release) -> None:
        """Tell a node to forget a range."""
        await self._tell(order.node_id, "release", wire.ReleaseMessage(version=order.version))

    async def _tell(
        self, node_id: str, path: str, message: wire.Message, *, retries_s: tuple[float, ...] = RETRIES_S
    ) -> None:
        for pause_s in (*retries_s, None):
            url = self.urls.get(node_id)
            if not url:
                return  # it has gone
            try:
                answer = await self.client.post(
                    f"{url}/{path}", content=message.model_dump_json(), timeout=ORDER_TIMEOUT_S
                )
                answer.raise_for_status()
            except httpx.HTTPError as error:
                if pause_s is None:
                    # A node that died is not told of each of its requests; one that was not asked twice needs not.
                    level = logging.WARNING if retries_s else logging.INFO
                    log.log(level, "%s did not take /%s: %s: %s", node_id, path, type(error).__name__, error)
                else:
                    await asyncio.sleep(pause_s)
            else:
                return


def _kept(stream: RequestStream, dispatch: Dispatch) -> wire.KeptMessage | None:
    """Return what the last attempt kept: all but the last token, whose keys and values are perhaps not there."""
    sent, kept = stream.sent, dispatch.kept
    if kept is None or sent is None or sent.attempt != kept.attempt:
        return None
    tokens = len(stream.prompt) + len(stream.generated) - 1
    return wire.KeptMessage(attempt=sent.attempt, tokens=tokens, stages=sent.stages)


async def _read(
    stream: RequestStream, lines: AsyncIterator[bytes], node_id: str, attempt: int, *, vocab_size: int
) -> AttemptResult:
    async for raw in lines:
        if not stream.may_write(attempt):
            continue  # it is being parked, and goes on elsewhere from what there is
        line = wire.GenerateLine.model_validate_json(raw)
        if line.error is not None:
            return AttemptResult(error=line.error, suspect=line.node_id)
        if line.token is not None:
            if stream.num_generated >= stream.signal.max_tokens:
                return AttemptResult(error=f"{node_id} sent more tokens than requested", suspect=node_id)
            if line.token >= vocab_size:
                return AttemptResult(error=f"{node_id} sent token {line.token}, which is none", suspect=node_id)
            if stream.put_token(line.token):
                return AttemptResult(finish="stop")
        if line.finish is not None:
            with suppress(TimeoutError, httpx.HTTPError):
                async with asyncio.timeout(END_S):
                    await anext(lines, None)  # a connection read to its end is used again
            return AttemptResult(finish=line.finish, is_clean=True)
        await stream.room()
    return AttemptResult(error=f"{node_id} closed the stream early", suspect=node_id)


def _seed(stream: RequestStream) -> int:
    # Without one, the id decides: another attempt at the request must draw the same tokens.
    if stream.request.seed is not None:
        return stream.request.seed % SEEDS
    return int.from_bytes(hashlib.sha256(stream.request_id.encode()).digest()[:8]) % SEEDS
