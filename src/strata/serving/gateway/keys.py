"""Clients' keys and what each may ask: requests and tokens a minute, requests at once.

A file names them:

    alice: {key_sha256: 9f86d0..., requests_per_minute: 60, tokens_per_minute: 10000, at_once: 4}

What is allowed a minute comes back evenly; unused, a minute's worth of it is there at once. Tokens are counted
when an answer ends, so that one answer may overdraw, and the next waits for it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, RootModel

from strata.clock import Clock
from strata.errors import UsageError
from strata.files import FileModel, read_document
from strata.serving.gateway.openai import ApiError

MINUTE_S: Final = 60.0
Most = Annotated[int, Field(ge=1, le=10**12)]


class _Entry(FileModel):
    key_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    requests_per_minute: Most | None = None
    tokens_per_minute: Most | None = None
    at_once: Most | None = None


class _Entries(RootModel[dict[str, _Entry]]):
    pass


@dataclass(frozen=True, slots=True)
class ClientKey:
    """What a client may ask; None for as much as it likes."""

    name: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    at_once: int | None = None


class _Allowance:
    """So much a minute; below zero after more was taken than was there."""

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute, self._left, self._at_s = per_minute, per_minute, now_s

    def wait_s(self, now_s: float, *, least: float) -> float:
        """Return how long until so much is there; 0 where it is."""
        refilled = self._left + (now_s - self._at_s) * self.per_minute / MINUTE_S
        self._left, self._at_s = min(self.per_minute, refilled), now_s
        return max(0.0, least - self._left) * MINUTE_S / self.per_minute

    def take(self, amount: float) -> None:
        """Take what was used, whether or not it was there."""
        self._left -= amount


class ClientKeys:
    """Keys by their digest, and what each has used."""

    def __init__(self, keys: Mapping[str, ClientKey], *, clock: Clock) -> None:
        self._keys, self._clock = keys, clock
        self._running = Counter[str]()
        now_s = clock()
        self._requests = {
            key.name: _Allowance(key.requests_per_minute, now_s)
            for key in keys.values()
            if key.requests_per_minute is not None
        }
        self._tokens = {
            key.name: _Allowance(key.tokens_per_minute, now_s)
            for key in keys.values()
            if key.tokens_per_minute is not None
        }

    def find(self, bearer: str) -> ClientKey | None:
        """Return whose key this is. By digest: how long that takes says nothing of the keys there are."""
        return self._keys.get(hashlib.sha256(bearer.encode(errors="replace")).hexdigest())

    def admit(self, key: ClientKey) -> None:
        """Count a request. Raises ApiError (429) with the time after which it may come again."""
        now_s = self._clock()
        if key.at_once is not None and self._running[key.name] >= key.at_once:
            raise _too_many(f"{key.at_once} requests at once", 1.0)
        requests, tokens = self._requests.get(key.name), self._tokens.get(key.name)
        if tokens and (wait_s := tokens.wait_s(now_s, least=1.0)):
            raise _too_many(f"{key.tokens_per_minute} tokens a minute", wait_s)
        if requests:
            if wait_s := requests.wait_s(now_s, least=1.0):
                raise _too_many(f"{key.requests_per_minute} requests a minute", wait_s)
            requests.take(1.0)

    @contextmanager
    def counted(self, key: ClientKey, num_tokens: Callable[[], int]) -> Iterator[None]:
        """Count a request as running, and at its end the tokens of prompt and answer."""
        self._running[key.name] += 1
        try:
            yield
        finally:
            self._running[key.name] -= 1
            if tokens := self._tokens.get(key.name):
                tokens.take(num_tokens())


def _too_many(what: str, wait_s: float) -> ApiError:
    return ApiError(429, f"this key allows {what}", "rate_limit_exceeded", retry_after_s=math.ceil(wait_s))


def read_keys(path: str | Path, *, clock: Clock) -> ClientKeys:
    """Read a file of keys. Raises BadFile, or UsageError where two clients have one key."""
    entries = read_document(path).check(_Entries).root
    keys = {
        entry.key_sha256: ClientKey(name, **entry.model_dump(exclude={"key_sha256"}))
        for name, entry in entries.items()
    }
    if not keys or len(keys) < len(entries):
        raise UsageError(f"{path}: {'two clients have the same key' if entries else 'names no client'}")
    return ClientKeys(keys, clock=clock)
