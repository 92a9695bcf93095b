"""The parts of OpenAI's API that the gateway speaks: requests checked, and answers written.

https://platform.openai.com/docs/api-reference/chat and .../completions; `priority` is ours (larger goes first).
Headers `x-strata-ttft-ms` and `x-strata-tpot-ms` are ours too: a request's goals for its first token, and for each
after it; the router `auto` admits by them. What is checked here is what the gateway must understand: the rest goes
to whole engines (vLLM, SGLang) as it came, and `small_model` says what our own workers do not do.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

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
    "prompt": "should be a text, the tokens of one, or a list of either",
    "stop": "should be a text or a list of texts",
    "content": "should be a text or a list of parts",
}
"""What fields that take several kinds of value want; pydantic would speak of the first kind only."""


ROLES: Final = ("assistant", "developer", "function", "system", "tool", "user")


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

    @property
    def headers(self) -> dict[str, str]:
        """When to come again, where that is known."""
        return {} if self.retry_after_s is None else {"retry-after": f"{max(1, round(self.retry_after_s))}"}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def num_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> dict[str, int]:
        """Return the form of OpenAI's API."""
        return asdict(self) | {"total_tokens": self.num_tokens}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE: Final = BeforeValidator(_whole)
"""An integer is as JSON has it: 3.0 is one."""
Tokens = Annotated[int, Field(ge=0, le=10**7), WHOLE]
Token = Annotated[int, Field(ge=0, lt=2**31), WHOLE]


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class StreamOptions(_Entry):
    """`include_usage`: a last chunk with the counts of tokens."""

    include_usage: bool | None = None


class GenerationRequest(_Entry):
    """What both endpoints take: fields as OpenAI names them, properties for what they come to."""

    kind: ClassVar[Literal["chat", "completion", "other"]]
    path: ClassVar[str]

    model: Annotated[str, Field(min_length=1, max_length=200)]
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), WHOLE] | None = None
    stop: str | list[str] | None = None
    max_tokens: Tokens | None = None
    n: Annotated[int, Field(ge=1, le=10**4), WHOLE] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, Field(max_length=200)] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000), WHOLE] | None = None

    _raw: bytes = PrivateAttr(b"")

    @property
    def raw(self) -> bytes:
        """The JSON that it was read from."""
        return self._raw

    @property
    @abstractmethod
    def text(self) -> str:
        """The prompts as text; empty where they came as tokens."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompts as tokens; empty where they came as text."""
        return ()

    @property
    def num_prompts(self) -> int:
        """Prompts, each of which is answered."""
        return 1

    @property
    def num_choices(self) -> int:
        """Answers that are asked for."""
        return (self.n or 1) * self.num_prompts

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
    """POST /v1/completions: prompts, as texts or as tokens."""

    kind, path = "completion", "/v1/completions"

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[Annotated[list[Token], Field(min_length=1)]], Field(min_length=1)]
    )

    @property
    def num_prompts(self) -> int:
        """Prompts, each of which is answered."""
        return 1 if isinstance(self.prompt, str) or isinstance(self.prompt[0], int) else len(self.prompt)

    @property
    def text(self) -> str:
        """The prompts as text; empty where they came as tokens."""
        return (
            self.prompt if isinstance(self.prompt, str) else "".join(p for p in self.prompt if isinstance(p, str))
        )

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompts as tokens; empty where they came as text."""
        parts = [part if isinstance(part, list) else [part] for part in self.prompt if not isinstance(part, str)]
        return tuple(token for part in parts for token in part)

    @property
    def token_limit(self) -> int:
        """Most tokens of the answer."""
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens


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

    kind, path = "chat", "/v1/chat/completions"

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None

    @property
    def text(self) -> str:
        """The chat as one text: its length tells about how many tokens it has."""
        return "".join(f"{message.role}: {message.text}\n" for message in self.messages)

    @property
    def token_limit(self) -> int | None:
        """Most tokens of the answer; None where the client left it open."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class PassedRequest(GenerationRequest):
    """What engines alone understand: it goes to one as it came, and the answer comes back as it is."""

    kind = "other"

    @property
    def text(self) -> str:
        """What is asked, to estimate its length by."""
        return json.dumps(self.model_extra)

    @property
    def token_limit(self) -> int | None:
        """Not known."""
        return None


class EmbeddingsRequest(PassedRequest):
    """POST /v1/embeddings."""

    path = "/v1/embeddings"


class ResponsesRequest(PassedRequest):
    """POST /v1/responses."""

    path = "/v1/responses"


class RerankRequest(PassedRequest):
    """POST /v1/rerank, as vLLM and Jina have it."""

    path = "/v1/rerank"


def small_model(request: GenerationRequest) -> None:
    """Raise ApiError (400) for what our own workers do not do."""
    if request.kind == "other":
        raise ApiError(400, f"this model does not serve {request.path}", "unsupported_endpoint")
    wrong = {
        "n": request.n not in (None, 1) and "only one answer at a time is supported by this model",
        "prompt": request.num_prompts > 1 and "only one prompt at a time is supported by this model",
        "max_tokens": request.token_limit == 0 and "this model writes at least one token",
        "stop": (len(request.stops) > 4 or "" in request.stops) and "should be up to 4 texts, none of them empty",
    }
    for number, message in enumerate(request.messages if isinstance(request, ChatRequest) else ()):
        parts = message.content if isinstance(message.content, list) else []
        kinds = [part.get("type") for part in parts if part.get("type") != "text"]
        wrong[f"messages.{number}.content"] = bool(kinds) and f"this model reads text only, not {kinds[0]!r}"
        wrong[f"messages.{number}.role"] = (
            message.role not in ROLES and f"{message.role!r} is not one of {', '.join(ROLES)}"
        )
    for param, problem in wrong.items():
        if problem:
            raise ApiError(400, f"{param}: {problem}", "invalid_value", param=param)
    if request.extra:
        name = request.extra[0]
        raise ApiError(400, f"{name} is not supported by this model", "unsupported_parameter", param=name)


def parse(model: type[GenerationRequest], body: bytes) -> GenerationRequest:
    """Return what is asked. Raises ApiError (400) naming the first thing that is wrong."""
    try:
        request = model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where, problem = _where(first["loc"], first["msg"])
        code = "invalid_json" if first["type"] == "json_invalid" else "invalid_value"
        raise ApiError(400, f"{where}: {problem}" if where else problem, code, param=where or None) from None
    request._raw = body
    return request


def _where(loc: tuple[str | int, ...], message: str) -> tuple[str, str]:
    """Return the field that a fault is in, and what is wrong with it."""
    for i, part in enumerate(loc[:-1]):  # after a field of several kinds comes the name of one of them
        if part in SEVERAL:
            return ".".join(map(str, loc[: i + 1])), SEVERAL[str(part)]
    return ".".join(map(str, loc)), message


def _asks_nothing(key: str, value: Any) -> bool:
    # `logprobs: 0` asks for those of the tokens themselves, and is no False.
    return value is None or any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in NEUTRAL.get(key, ())
    )


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
