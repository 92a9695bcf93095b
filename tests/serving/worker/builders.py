"""Workers without torch: a model of whole numbers, and workers that reach each other in process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from strata.net.frames import FrameError
from strata.serving.wire import GenerateLine, GenerateMessage, RangeMessage, StageMessage
from strata.serving.worker.handover import KvError
from strata.serving.worker.holder import AttemptKey
from strata.serving.worker.peers import Links
from strata.serving.worker.shape import Shape
from strata.serving.worker.steps import StepRow
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


class NumberCache(dict):
    """What layers have seen, as it goes from worker to worker."""

    def taken(self, layer, tokens):
        if len(self.get(layer, ())) < tokens:
            raise KvError(f"layer {layer} has not {tokens} tokens")
        seen = np.array(self.pop(layer)[:tokens], np.float64)
        return [part.tobytes() for part in np.array_split(seen, 2) if len(part)]

    def fill(self, layer, tokens, parts):
        self[layer] = np.frombuffer(b"".join(parts)).tolist()
        if len(self[layer]) != tokens:
            raise KvError(f"{len(self[layer])} of {tokens} tokens came")


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
        return NumberCache()


class Pipe(asyncio.Transport):
    """One end of a connection in this process; `far` is what hears at the other."""

    def __init__(self, near, far):
        super().__init__()
        self.near, self.far, self.other, self.is_over = near, far, None, False

    def write(self, data):
        if not self.is_over:
            asyncio.get_running_loop().call_soon(self._deliver, data)

    def _deliver(self, data):
        if not self.is_over:
            self.far.data_received(data)

    def abort(self):
        self.end(None)

    close = abort

    def end(self, error):
        for one in (self, self.other):
            if not one.is_over:
                one.is_over = True
                asyncio.get_running_loop().call_soon(one.near.connection_lost, error)


class Network:
    """Workers by address. `before` sees a step that is handed over, and swallows it where it returns True."""

    def __init__(self):
        self.workers: dict[str, Worker] = {}
        self.gone: set[str] = set()
        self.before: Callable[[str, AttemptKey, StepRow], Any] | None = None
        self.pipes: list[tuple[str, Pipe]] = []

    def cut(self, *urls):
        """Break all connections from or to workers, and let nobody connect again."""
        self.gone |= set(urls)
        for ends, pipe in self.pipes:
            if not self.gone.isdisjoint(ends):
                pipe.end(ConnectionResetError("cut"))

    def break_off(self):
        """Break all connections; who wants to may connect again."""
        for _, pipe in self.pipes:
            pipe.end(ConnectionResetError("cut"))
        self.pipes.clear()

    def connect(self, source, url, connection):
        if not self.gone.isdisjoint((source, url)):
            raise FrameError("cut")
        if url not in self.workers:
            raise FrameError("nobody is there")
        worker = self.workers[url]
        incoming = worker.incoming().connection
        near, far = Pipe(connection, incoming), Pipe(incoming, connection)
        near.other, far.other = far, near
        self.pipes.append(((source, url), near))
        incoming.connection_made(far)
        connection.connection_made(near)


class LocalLinks(Links):
    """Links within this process."""

    def __init__(self, network, source):
        super().__init__(token="", fingerprint="", frame_bytes=2**16, silence_s=30.0)
        self.network, self.source = network, source

    async def connect(self, url, connection):
        self.network.connect(self.source, url, connection)


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class Cluster:
    """Workers a, b, c ... in process, each with a third, say, of the layers; for one event loop."""

    def __init__(self, *cuts, version=1, memory_bytes=1e9, model=SHAPE, maker=NumberMaker, **options):
        self.model = model
        self.network, self.clock, self.version = Network(), Clock(), version
        self.ranges = list(zip((0, *cuts), (*cuts, model.num_layers), strict=True))
        self.workers = [
            Worker(
                name,
                model,
                maker(),
                memory_bytes=memory_bytes,
                peers=LocalLinks(self.network, f"at-{name}"),
                clock=self.clock,
                **options,
            )
            for name, _ in zip("abcdef", self.ranges, strict=False)
        ]
        for worker in self.workers:
            worker.stage.url = f"at-{worker.node_id}"
            self.network.workers[worker.stage.url] = worker
            self._watch(worker)

    def _watch(self, worker):
        enter = worker.stage.enter

        def watched(passage, row, given):
            is_handed = worker is not self.workers[0] and self.network.before
            if not is_handed or not self.network.before(worker.node_id, passage.key, row):
                enter(passage, row, given)

        worker.stage.enter = watched

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
        given = {"request_id": "r", "attempt": 1, "prompt": (1, 2, 3), "max_tokens": 8, "stages": stages}
        return GenerateMessage(**(given | fields))

    async def relay(self, *cuts, workers=None):
        """Have the layers of another plan loaded on some workers; return its stages."""
        workers = self.workers if workers is None else workers
        self.version += 1
        ranges = zip((0, *cuts), (*cuts, self.model.num_layers), strict=True)
        stages = []
        for worker, (first, end) in zip(workers, ranges, strict=False):
            await load(worker, self.version, first, end)
            stages.append(
                StageMessage(
                    version=self.version, node_id=worker.node_id, url=worker.stage.url, first=first, end=end
                )
            )
        return tuple(stages)

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
        """Wait until nothing is under way in the background, and all that was sent has come."""
        for worker in self.workers:
            await asyncio.wait_for(asyncio.gather(*worker.tasks, return_exceptions=True), 120)
        for _ in range(20):  # to the next worker, and from there on
            await asyncio.sleep(0)


async def load(worker, version, first, end):
    """Have layers loaded, and wait until they are."""
    ready = asyncio.Event()

    async def loaded(done):
        if done == version:
            ready.set()

    worker.on_loaded = loaded
    worker.load(RangeMessage(version=version, first=first, end=end))
    await asyncio.wait_for(ready.wait(), 120)


def run(work):
    """Return what a coroutine returns, within five minutes."""
    return asyncio.run(asyncio.wait_for(work, 300))


async def answered(*cuts, **fields):
    """Return the tokens of an attempt on workers of its own that ends well."""
    async with Cluster(*cuts) as cluster:
        return await cluster.said(**fields)
