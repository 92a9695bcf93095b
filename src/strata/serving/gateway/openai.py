"""The parts of OpenAI's API that the gateway speaks: requests checked, and answers written.

https://platform.openai.com/docs/api-reference/chat and .../completions; `priority` is ours (larger goes first).
Headers `x-strata-ttft-ms` and `x-strata-tpot-ms` are ours too: a request's goals for its first token, and for each
after it; the router `auto` admits by them. Keys that are not here go to whole engines (vLLM, SGLang) as they came,
and are refused by our own workers unless their value asks for nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strata.serving.gateway.request_stream import ApiError, GenerationRequest, Usage

DEFAULT_COMPLETION_TOKENS: Final = 16
"""As in OpenAI's API."""

NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "store": (False, True),
    "tools": ([],),
    "top_p": (1,),
}
"""Values of keys we do not have that ask for nothing; null always does."""

SEVERAL: Final = {
    "prompt": "should be one text, or the tokens of one; several prompts at a time are not supported",
    "stop": "should be a text or up to 4 texts, none of them empty",
    "content": "should be a text or a list of parts",
}
"""What fields that take several kinds of value want; pydantic would speak of the first kind only."""


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    model: Annotated[str, Field(min_length=1, max_length=200)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[str, Field(min_length=1)] | Annotated[list[Stop], Field(max_length=4)] | None = None
    max_tokens: Tokens | None = None
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=200)] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None


Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Tokens = Annotated[int, Field(ge=1, le=10**7)]


class StreamOptions(BaseModel):
    """`include_usage`: a last chunk with the counts of tokens."""

    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool | None = None


class CompletionRequest(_Request):
    """POST /v1/completions: one prompt, as text or as tokens."""

    prompt: (
        str | Annotated[list[str], Field(min_length=1, max_length=1)] | Annotated[list[Token], Field(min_length=1)]
    )


Token = Annotated[int, Field(ge=0, lt=2**31)]


class ChatMessage(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Annotated[str, Field(min_length=1, max_length=50)]
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(_Request):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None


def parse(kind: Literal["chat", "completion"], body: bytes) -> GenerationRequest:
    """Return what is asked. Raises ApiError (400) naming the first thing that is wrong."""
    model: type[ChatRequest | CompletionRequest] = ChatRequest if kind == "chat" else CompletionRequest
    try:
        read = model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where, problem = _where(first["loc"], first["msg"])
        code = "invalid_json" if first["type"] == "json_invalid" else "invalid_value"
        raise ApiError(400, f"{where}: {problem}" if where else problem, code, param=where or None) from None
    return _generation_request(kind, read)


def goal_s(headers: Mapping[str, str], header: str) -> float:
    """Return a goal among a request's headers; infinite for none. Raises ApiError (400) for what is no time.

    A header, as any client of OpenAI's API can send some, and engines refuse keys they do not know.
    """
    if (text := headers.get(header)) is None:
        return math.inf
    try:
        seconds = float(text) / 1e3
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ApiError(
            400, f"{header}: should be a number of milliseconds, not {text!r}", "invalid_value", param=header
        )
    return seconds


def _where(loc: tuple[str | int, ...], message: str) -> tuple[str, str]:
    """Return the field that a fault is in, and what is wrong with it."""
    for i, part in enumerate(loc[:-1]):  # after a field of several kinds comes the name of one of them
        if part in SEVERAL:
            return ".".join(map(str, loc[: i + 1])), SEVERAL[str(part)]
    return ".".join(map(str, loc)), message


def _generation_request(
    kind: Literal["chat", "completion"], read: ChatRequest | CompletionRequest
) -> GenerationRequest:
    tokens: tuple[int, ...] = ()
    most = read.max_tokens
    if isinstance(read, ChatRequest):
        text = chat_text(read.messages)
        most = read.max_completion_tokens or most
    elif isinstance(read.prompt, str):
        text = read.prompt
    elif isinstance(read.prompt[0], str):
        text = read.prompt[0]
    else:
        text, tokens = "", tuple(int(token) for token in read.prompt)
    if kind == "completion":
        most = most or DEFAULT_COMPLETION_TOKENS
    return GenerationRequest(
        kind=kind,
        model=read.model,
        body=read.model_dump(exclude_unset=True),
        text=text,
        tokens=tokens,
        max_tokens=most,
        temperature=1.0 if read.temperature is None else read.temperature,
        seed=read.seed,
        stops=(read.stop,) if isinstance(read.stop, str) else tuple(read.stop or ()),
        is_stream=bool(read.stream),
        has_usage=bool(read.stream_options and read.stream_options.include_usage),
        priority=read.priority or 0,
        extra=tuple(key for key, value in (read.model_extra or {}).items() if not _asks_nothing(key, value)),
    )


def _asks_nothing(key: str, value: Any) -> bool:
    return value is None or any(value == neutral for neutral in NEUTRAL.get(key, ()))


def chat_text(messages: list[ChatMessage]) -> str:
    """Return a chat as the text that a small model goes on with: `role: content` lines, then `assistant:`.

    Parts that are not text are left out: only whole engines take them, and those get the messages as they came.
    """
    lines = []
    for message in messages:
        content = message.content
        if isinstance(content, list):
            content = "".join(part["text"] for part in content if isinstance(part.get("text"), str))
        lines.append(f"{message.role}: {content or ''}\n")
    return "".join(lines) + "assistant:"


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the answer to one request: whole, or in chunks. `created` is in seconds since 1970."""

    request: GenerationRequest
    request_id: str
    created: int

    def _head(self, *, is_chunk: bool) -> dict[str, Any]:
        name = "text_completion"
        if self.request.kind == "chat":
            name = "chat.completion.chunk" if is_chunk else "chat.completion"
        return {"id": self.request_id, "object": name, "created": self.created, "model": self.request.model}

    def whole(self, text: str, finish: str, usage: Usage) -> dict[str, Any]:
        """Return the answer of a request without stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.request.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self._head(is_chunk=False) | {"choices": [choice], "usage": usage.to_dict()}

    def chunk(self, text: str, finish: str | None = None, *, is_first: bool = False) -> dict[str, Any]:
        """Return a piece of text, the end, or both."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.request.kind == "chat":
            choice["delta"] = ({"role": "assistant"} if is_first else {}) | ({"content": text} if text else {})
        else:
            choice["text"] = text
        return self._head(is_chunk=True) | {"choices": [choice]}

    def relayed(self, answer: dict[str, Any], *, is_chunk: bool) -> dict[str, Any]:
        """Return what an engine wrote under our id and model name."""
        return answer | self._head(is_chunk=is_chunk)

    def usage(self, usage: Usage) -> dict[str, Any]:
        """Return the last chunk, asked for by `include_usage`."""
        return self._head(is_chunk=True) | {"choices": [], "usage": usage.to_dict()}


def event(data: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


DONE: Final = b"data: [DONE]\n\n"
