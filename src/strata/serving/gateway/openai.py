"""The parts of OpenAI's API that the gateway speaks: requests checked, and answers written.

https://platform.openai.com/docs/api-reference/chat and .../completions; `priority` is ours (larger goes first).
Headers `x-strata-ttft-ms` and `x-strata-tpot-ms` are ours too: a request's goals for its first token, and for each
after it; the router `auto` admits by them. Keys that are not here go to whole engines (vLLM, SGLang) as they came,
and are refused by our own workers unless their value asks for nothing.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strata.net.http import error_body, kind_of

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


class ApiError(Exception):
    """Why there is no answer, as the client will see it. `body`: an engine's own words, sent as they are."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        body: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after_s = status, code, retry_after_s
        self.body = body or error_body(message, kind=kind_of(status), code=code, param=param)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int

    def to_dict(self) -> dict[str, int]:
        """Return the form of OpenAI's API."""
        return asdict(self) | {"total_tokens": self.prompt_tokens + self.completion_tokens}


Stop = Annotated[str, Field(min_length=1, max_length=1000)]
Tokens = Annotated[int, Field(ge=1, le=10**7)]
Token = Annotated[int, Field(ge=0, lt=2**31)]


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class StreamOptions(_Entry):
    """`include_usage`: a last chunk with the counts of tokens."""

    include_usage: bool | None = None


class GenerationRequest(_Entry):
    """What both endpoints take: fields as OpenAI names them, properties for what they come to."""

    kind: ClassVar[Literal["chat", "completion"]]

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

    @property
    @abstractmethod
    def text(self) -> str:
        """The prompt as text; empty where it came as tokens."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt as tokens; empty where it came as text."""
        return ()

    @property
    @abstractmethod
    def token_limit(self) -> int | None:
        """Most tokens of the answer; None where the client left it open."""

    @property
    def body(self) -> dict[str, Any]:
        """The request as it came, for whole engines."""
        return self.model_dump(exclude_unset=True)

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which the answer ends."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def has_usage(self) -> bool:
        """Whether the last chunk of a stream counts tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def extra(self) -> tuple[str, ...]:
        """Keys beyond those we have that ask for something."""
        extra = self.model_extra or {}
        return tuple(key for key, value in extra.items() if not _asks_nothing(key, value))


class CompletionRequest(GenerationRequest):
    """POST /v1/completions: one prompt, as text or as tokens."""

    kind = "completion"

    prompt: (
        str | Annotated[list[str], Field(min_length=1, max_length=1)] | Annotated[list[Token], Field(min_length=1)]
    )

    @property
    def text(self) -> str:
        """The prompt as text; empty where it came as tokens."""
        first = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        return first if isinstance(first, str) else ""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt as tokens; empty where it came as text."""
        return tuple(token for token in self.prompt if isinstance(token, int))

    @property
    def token_limit(self) -> int:
        """Most tokens of the answer."""
        return self.max_tokens or DEFAULT_COMPLETION_TOKENS


class ChatMessage(_Entry):
    """One message of a chat."""

    role: Annotated[str, Field(min_length=1, max_length=50)]
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        """Its parts that are text: only whole engines take others, and those get the messages as they came."""
        if not isinstance(self.content, list):
            return self.content or ""
        return "".join(part["text"] for part in self.content if isinstance(part.get("text"), str))


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    kind = "chat"

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None

    @property
    def text(self) -> str:
        """The chat as one text: its length tells about how many tokens it has."""
        return "".join(f"{message.role}: {message.text}\n" for message in self.messages)

    @property
    def token_limit(self) -> int | None:
        """Most tokens of the answer; None where the client left it open."""
        return self.max_completion_tokens or self.max_tokens


def parse(model: type[GenerationRequest], body: bytes) -> GenerationRequest:
    """Return what is asked. Raises ApiError (400) naming the first thing that is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where, problem = _where(first["loc"], first["msg"])
        code = "invalid_json" if first["type"] == "json_invalid" else "invalid_value"
        raise ApiError(400, f"{where}: {problem}" if where else problem, code, param=where or None) from None


def goal_s(headers: Mapping[str, str], header: str) -> float:
    """Return a goal among a request's headers; infinite for none. Raises ApiError (400) for an invalid time.

    A header, as any client of OpenAI's API can send some, and engines refuse keys they do not know.
    """
    if (text := headers.get(header)) is None:
        return math.inf
    try:
        seconds = float(text) / 1e3
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        problem = f"{header}: should be a number of milliseconds, not {text!r}"
        raise ApiError(400, problem, "invalid_value", param=header)
    return seconds


def _where(loc: tuple[str | int, ...], message: str) -> tuple[str, str]:
    """Return the field that a fault is in, and what is wrong with it."""
    for i, part in enumerate(loc[:-1]):  # after a field of several kinds comes the name of one of them
        if part in SEVERAL:
            return ".".join(map(str, loc[: i + 1])), SEVERAL[str(part)]
    return ".".join(map(str, loc)), message


def _asks_nothing(key: str, value: Any) -> bool:
    return value is None or any(value == neutral for neutral in NEUTRAL.get(key, ()))


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

    def _choice(self, finish: str | None, chat: dict[str, Any], text: str) -> list[dict[str, Any]]:
        form = chat if self.request.kind == "chat" else {"text": text}
        return [{"index": 0, "finish_reason": finish, "logprobs": None} | form]

    def whole(self, text: str, finish: str, usage: Usage) -> dict[str, Any]:
        """Return the answer of a request without stream."""
        choices = self._choice(finish, {"message": {"role": "assistant", "content": text}}, text)
        return self._head(is_chunk=False) | {"choices": choices, "usage": usage.to_dict()}

    def chunk(self, text: str, finish: str | None = None, *, is_first: bool = False) -> dict[str, Any]:
        """Return a piece of text, the end, or both."""
        delta = ({"role": "assistant"} if is_first else {}) | ({"content": text} if text else {})
        return self._head(is_chunk=True) | {"choices": self._choice(finish, {"delta": delta}, text)}

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
