"""One engine's stream of events, on its way to the client: read for what the gateway must know, else as it came.

Bytes are handed on as they are, with our id in the place of the engine's. Only what has to differ is written anew:
what goes on from another engine's text, usage that was not asked for, and events of engines that leave out what
OpenAI's have.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from strata.serving.gateway.openai import ApiError, Usage, Writer, event
from strata.serving.gateway.request_stream import RequestStream

EVENT_BYTES: Final = 2**20
"""Longest line of an event: more is no chunk of a text."""
DONE_DATA: Final = b"[DONE]"


class EngineFailed(Exception):
    """The engine itself says that the request failed, in the middle of its stream."""

    def __init__(self, fault: ApiError) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Usual(NamedTuple):
    """An event but for its text, theirs and ours: most of a stream are alike, and need not be read again."""

    begin: bytes
    end: bytes
    before: bytes
    after: bytes

    def text(self, data: bytes) -> str:
        """Return the text of one event like this; nothing where it is not, or where its text is not plain."""
        if not (data.startswith(self.begin) and data.endswith(self.end)):
            return ""
        text = data[len(self.begin) : -len(self.end)]
        return text.decode() if _PLAIN(text) else ""

    def ours(self, text: str) -> bytes:
        """Return the event for the client."""
        return b"".join((self.before, text.encode(), self.after))


_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]+').fullmatch
"""What stands for itself between JSON's quotation marks."""
_EVENT: Final = b"data: %b\n\n"


def _usual(payload: bytes, ours: bytes, text: Any) -> Usual | None:
    """Return an event, theirs and ours, without its text; None where that has no one place."""
    quoted = b'"%s"' % text.encode(errors="replace") if isinstance(text, str) and text else b""
    if not quoted or not _PLAIN(quoted[1:-1]) or payload.count(quoted) != 1 or ours.count(quoted) != 1:
        return None
    (begin, _, end), (before, _, after) = ((_EVENT % data).partition(quoted) for data in (payload, ours))
    return Usual(begin + b'"', b'"' + end, before + b'"', b'"' + after)


class Relay:
    """Events of one attempt. `is_done`: all of the answer has come, whether or not the engine said [DONE], which
    is `is_over`.
    """

    def __init__(self, stream: RequestStream) -> None:
        self.stream, self.finish, self.is_over = stream, "stop", False
        self._writer = Writer(stream.request, stream.request_id, stream.created)
        self._rest = b""
        self._ended = set[int]()
        self._exchange: tuple[tuple[bytes, bytes], ...] | None = None
        self._is_first = True
        self._usual: Usual | None = None

    @property
    def is_done(self) -> bool:
        """Whether every choice has said why it ended."""
        return len(self._ended) >= self.stream.request.num_choices

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those for the client.

        Raises ValueError for what is no event, EngineFailed where the engine says so.
        """
        if not self._rest and (usual := self._usual) and (text := usual.text(data)):
            self._take(text)
            return usual.ours(text)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > EVENT_BYTES:
            raise ValueError(f"a line is longer than {EVENT_BYTES} bytes")
        out = list[bytes]()
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == DONE_DATA:
                self.is_over = True
                break
            out.append(self._event(payload))
        return b"".join(out)

    def _event(self, payload: bytes) -> bytes:
        if (usual := self._usual) and (text := usual.text(_EVENT % payload)):
            self._take(text)
            return usual.ours(text)
        chunk = json.loads(payload)
        if not isinstance(chunk, dict):
            raise ValueError("an event is no object")
        if "error" in chunk:
            raise EngineFailed(ApiError(502, "the engine failed", "engine-failed", body=error_of(payload)))
        stream, is_changed = self.stream, False
        choices = [choice for choice in chunk.get("choices") or () if isinstance(choice, dict)]
        if choices:
            stream.note_token()
        for choice in choices:
            is_changed |= self._choice(choice)
        if usage := usage_of(chunk):
            stream.engine_usage = usage = Usage(
                usage.prompt_tokens - stream.num_resumed, usage.completion_tokens + stream.num_resumed
            )
            if stream.num_resumed:
                chunk["usage"], is_changed = usage.to_dict(), True
        if not choices and not (usage and stream.request.has_usage):
            return b""
        if self._is_first:
            self._is_first, self._exchange = False, self._exchanges(chunk, payload)
        if is_changed or self._exchange is None:
            return event(self._writer.relayed(chunk, is_chunk=True))
        ours = payload
        for old, new in self._exchange:
            ours = ours.replace(old, new, 1)
        if not usage and len(choices) == 1 and not choices[0].get("finish_reason"):
            message = choices[0].get("text") or (choices[0].get("delta") or {}).get("content")
            self._usual = _usual(payload, ours, message)
        return _EVENT % ours

    def _take(self, text: str) -> None:
        self.stream.texts.append(text)
        self.stream.num_generated += 1

    def _choice(self, choice: dict[str, Any]) -> bool:
        """Note what a choice says; return whether it must not be handed on as it is."""
        stream, index, is_changed = self.stream, choice.get("index", 0), False
        if choice.get("finish_reason"):
            self.finish = str(choice["finish_reason"])
            self._ended.add(index)
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise ValueError("a delta is no object")
        if stream.num_resumed and "role" in delta:
            del delta["role"]  # the message has begun
            is_changed = True
        stream.is_plain &= not any(value for key, value in delta.items() if key not in ("role", "content"))
        if text := choice.get("text") or delta.get("content"):
            self._take(str(text))
        return is_changed

    def _exchanges(self, chunk: dict[str, Any], payload: bytes) -> tuple[tuple[bytes, bytes], ...] | None:
        """Return what to put in the place of what; None where events have to be written anew.

        Within a text, quotation marks are escaped: what is looked for can only be a key and its value.
        """
        if any(key not in chunk for key in ("object", "created", "model")):
            return None
        exchanges = list[tuple[bytes, bytes]]()
        for key, value in (("id", self.stream.request_id), ("model", self.stream.request.model)):
            name = json.dumps(key).encode()
            theirs = [
                form
                for colon in (b":", b": ")
                if (form := name + colon + json.dumps(chunk.get(key)).encode()) in payload
            ]
            if not theirs:
                return None
            exchanges.append((theirs[0], name + b":" + json.dumps(value).encode()))
        return tuple(exchanges)


def usage_of(answer: dict[str, Any]) -> Usage | None:
    """Return the counts of tokens that an engine gave, where it gave both."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return Usage(read, written) if isinstance(read, int) and isinstance(written, int) else None


def error_of(body: bytes) -> bytes | None:
    """Return what an engine said in the form of OpenAI's errors, whose code is a text; None where it said none."""
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    error |= {"message": str(error.get("message", "")), "type": str(error.get("type") or "engine_error")}
    error |= {"param": error.get("param"), "code": None if code is None else str(code)}
    return json.dumps({"error": error}).encode()
