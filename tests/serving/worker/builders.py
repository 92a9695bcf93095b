"""Workers without torch: a model of whole numbers, and workers that reach each other in process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from strata.serving.wire import GenerateLine, GenerateMessage, RangeMessage, StageMessage
from strata.serving.worker.holder import ChainError
from strata.serving.worker.shape import Shape
from strata.serving.worker.worker import Worker

SHAPE = Shape(num_layers=6, hidden_size=4, num_heads=2, max_positions=64).hosted


class NumberPart:
    """Every layer adds to a token what it has seen of all before: a wrong cache says something else."""

    def __init__(self, first, end, layers):
        self.first, self.end, self.layers = first, end, layers

    def run(self, cache, given, *, position, replayed=0):
        rows = np.asarray(given, dtype=np.float32).reshape(len(given), -1)
        x = np.broadcast_to(rows[:, :1], (len(given), 4)).copy()
        for number in range(self.first + 1, self.end + 1):
            seen = cache.setdefault(number, [])
            assert len(seen) == position, f"layer {number} has {len(seen)} of {position} tokens"
            for row in x:
                seen.append(float(row[0]))
                row[:] = (row * 3 + self.layers[number] + sum(seen)) % 1009
        return x

    def step(self, rows):
        return np.concatenate([self.run(cache, [given], position=at) for cache, given, at in rows])

    def choose(self, hidden, draws):
        return [
            int(row[0] + draw.position + (draw.seed if draw.temperature else 0)) % 250
            for row, draw in zip(hidden, draws, strict=True)
        ]


class NumberMaker:
    """Counts what it makes."""

    def __init__(self):
        self.made = []

    def layer(self, number):
        self.made.append(number)
        return number

    def part(self, first, end, layers):
        return NumberPart(first, end, layers)

    def cache(self, max_tokens):
        return {}


class LocalPeers:
    """Workers by address; `cut` ones cannot be reached, `before` runs before a step is handed over."""

    def __init__(self):
        self.workers: dict[str, Worker] = {}
        self.cut: set[str] = set()
        self.before: Callable[[str, Any], Any] | None = None
        self.aborted: list[str] = []

    def at(self, url, suspect):
        if url in self.cut:
            raise ChainError(f"{url}: cut", suspect)
        return self.workers[url]

    async def step(self, header, hidden):
        dest = header.stages[0]
        worker = self.at(dest.url, dest.node_id)
        if self.before:
            await self.before(dest.node_id, header)
        await worker.stage.step(header, hidden)

    async def token(self, url, message):
        self.at(url, None).driver.deliver(message)

    async def abort(self, url, key):
        self.aborted.append(url)
        self.at(url, None).abort(key)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Cluster:
    """Workers a, b, c ... in process, each with a third, say, of the layers; for one event loop."""

    def __init__(self, *cuts, version=1, memory_bytes=1e9, **options):
        self.peers, self.clock, self.version = LocalPeers(), Clock(), version
        self.ranges = list(zip((0, *cuts), (*cuts, SHAPE.num_layers), strict=True))
        self.workers = [
            Worker(
                name,
                SHAPE,
                NumberMaker(),
                memory_bytes=memory_bytes,
                peers=self.peers,
                clock=self.clock,
                **options,
            )
            for name, _ in zip("abcdef", self.ranges, strict=False)
        ]
        for worker in self.workers:
            worker.stage.url = f"at-{worker.node_id}"
            self.peers.workers[worker.stage.url] = worker

    async def __aenter__(self):
        for worker, (first, end) in zip(self.workers, self.ranges, strict=True):
            await load(worker, self.version, first, end)
        return self

    async def __aexit__(self, *_error):
        for worker in self.workers:
            await worker.close()

    def message(self, **fields):
        stages = tuple(
            StageMessage(version=self.version, node_id=worker.node_id, url=worker.stage.url, first=first, end=end)
            for worker, (first, end) in zip(self.workers, self.ranges, strict=True)
        )
        given = {"request_id": "r", "attempt": 1, "prompt": (1, 2, 3), "max_tokens": 8}
        return GenerateMessage(stages=stages, **(given | fields))

    async def lines(self, **fields) -> list[GenerateLine]:
        return [line async for line in self.workers[0].generate(self.message(**fields))]

    async def said(self, **fields) -> list[int]:
        """Return the tokens of an attempt that ends well."""
        *tokens, end = await self.lines(**fields)
        assert end.finish, end
        return [line.token for line in tokens]

    @property
    def held(self):
        """Sequences that hold something, by worker."""
        return {worker.node_id: len(worker.holder.sequences) for worker in self.workers}

    async def settled(self):
        """Wait until nothing is under way in the background."""
        import asyncio

        for worker in self.workers:
            tasks = {*worker.tasks, *worker.driver.loose}
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 120)


async def load(worker, version, first, end):
    """Have layers loaded, and wait until they are."""
    import asyncio

    ready = asyncio.Event()

    async def loaded(done):
        if done == version:
            ready.set()

    worker.on_loaded = loaded
    worker.load(RangeMessage(version=version, first=first, end=end))
    await asyncio.wait_for(ready.wait(), 120)
