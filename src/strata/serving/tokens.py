"""Text as tokens: what any tokenizer does for the gateway (`Tokenizer`), and that of the small made-up model.

The small model's tokens are the bytes of UTF-8, a begin and an end: exact and reversible, no file is needed, and
every text is legal. Those of a real model are in `pretrained.tokenizer`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

BOS: Final = 256
EOS: Final = 257
VOCAB_SIZE: Final = 258


def encode(text: str) -> tuple[int, ...]:
    """Return the begin and the bytes of a text; lone surrogates, which JSON may hold, become question marks."""
    return (BOS, *text.encode("utf-8", errors="replace"))


class TokenDecoder(Protocol):
    """Tokens of one answer to text, as they come."""

    def push(self, token: int) -> str:
        """Return the text that a token completes, perhaps none."""

    def end(self) -> str:
        """Return what is left."""


class Tokenizer(Protocol):
    """Text and tokens of one model. stop_tokens: those that end an answer."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end an answer."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return a prompt's tokens."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the tokens of a chat, `role` and `content` of each message, up to where the answer begins.

        Raises ValueError saying why the model takes no such chat.
        """

    def decoder(self, prompt: Sequence[int]) -> TokenDecoder:
        """Return what makes text of the tokens after a prompt."""


class ByteTokenizer:
    """The small model's."""

    stop_tokens: tuple[int, ...] = (EOS,)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the begin and the bytes."""
        return encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the chat as lines that the model goes on with: `role: content`, then `assistant:`."""
        lines = (f"{message['role']}: {message['content']}\n" for message in messages)
        return encode("".join(lines) + "assistant:")

    def decoder(self, prompt: Sequence[int]) -> TokenDecoder:
        """Return what makes text of bytes."""
        return TextStream()


class TextStream:
    """Tokens as they come to text as it is known: a character appears when its last byte is there."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Return the text that a token completes, perhaps none."""
        return self._decoder.decode(bytes((token,))) if token < BOS else ""

    def end(self) -> str:
        """Return what is left: a character that was never completed."""
        return self._decoder.decode(b"", final=True)


class StopFinder:
    """Text as it comes, without anything from the first stop text on.

    What may be the beginning of a stop text is held back until it is known not to be.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.stops = tuple(stops)
        self.is_found = False
        self._held = ""

    def push(self, text: str) -> str:
        """Return the text that may be shown now."""
        if self.is_found:
            return ""
        text = self._held + text
        cuts = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if cuts:
            self.is_found, self._held = True, ""
            return text[: min(cuts)]
        keep = max((_overlap(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """Return what was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0
