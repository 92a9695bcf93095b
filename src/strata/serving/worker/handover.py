"""Keys and values on their way from the workers of one attempt to those of the next, a layer at a time."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from strata.errors import StrataError
from strata.serving.wire import KeptMessage, KvMessage
from strata.serving.worker.holder import AttemptKey, Holder, Sequence

if TYPE_CHECKING:
    from strata.serving.worker.peers import Links

TAKE_LIMIT_S: Final = 30.0
"""For all of an attempt's layers of one worker: it must then be computed anew."""


class KvError(StrataError):
    """Keys and values are not here, or not what was asked for."""


async def take(
    key: AttemptKey, kept: KeptMessage, sequence: Sequence, *, peers: Links, executor: Executor
) -> None:
    """Fill a sequence's cache from the workers that kept it. Raises KvError, FrameError, TimeoutError."""
    held, run = sequence.held, asyncio.get_running_loop().run_in_executor
    missing = set(range(held.first, held.end))
    async with asyncio.timeout(TAKE_LIMIT_S):
        for stage in kept.stages:
            for block in sorted(missing.intersection(range(stage.first, stage.end))):
                # One layer at a time: neither end ever holds a second copy of all of them.
                message = KvMessage(
                    request_id=key.request_id, attempt=kept.attempt, layer=block + 1, tokens=kept.tokens
                )
                parts = await peers.to(stage.url).fetch(message)  # anew: a link may end between two layers
                await run(executor, sequence.cache.fill, block + 1, kept.tokens, parts)
                missing.discard(block)
    if missing:
        raise KvError(f"nobody kept the layers {sorted(missing)}")


async def give(holder: Holder, executor: Executor, message: KvMessage) -> list[bytes]:
    """Return the parts of a layer of a parked sequence, which is then forgotten. Raises KvError."""
    key = AttemptKey(message.request_id, message.attempt)
    sequence = holder.parked.get(key)
    if sequence is None:
        raise KvError(f"attempt {message.attempt} of {message.request_id} is not kept here")
    # In the thread that may just be writing what it asks for.
    parts: list[bytes] = await asyncio.get_running_loop().run_in_executor(
        executor, sequence.cache.taken, message.layer, message.tokens
    )
    if not sequence.cache and holder.parked.get(key) is sequence:
        del holder.parked[key]
    return parts
