"""The simulation: jobs arrive, wait, run, share links, end. Events in a heap, ties in order of creation.

A run is a generator: it yields a `QueueSnapshot` for every question and is sent the answer. So many runs can ask
together and one batched policy answers them all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from strata.evaluation.queueing.grid import STEP_S, Grid, Placement
from strata.evaluation.queueing.job import QueuedJob
from strata.evaluation.queueing.outcome import QueueOutcome, summary
from strata.evaluation.queueing.snapshot import QueueScheduler, QueueSnapshot, RunningJob
from strata.evaluation.queueing.trace import QueueTrace

DEPTH = 16
"""Jobs of a queue that are looked at behind its head."""

Asking = Generator[QueueSnapshot, Placement | None, QueueOutcome]


@dataclass(slots=True)
class _Run:
    """A running job as the simulation knows it. `touched_s` lies ahead of now while it restarts."""

    view: RunningJob
    left_node_s: float
    touched_s: float
    version: int = 0


@dataclass(slots=True)
class Books:
    """What happened, per job [J] and in node-seconds inside the window."""

    starts_s: list[float]
    ends_s: list[float]
    useful_node_s: float = 0.0
    held_node_s: float = 0.0
    moves: int = 0
    spans: int = 0
    events: int = 0
    order: list[int] = field(default_factory=list)


def simulate(grid: Grid, trace: QueueTrace, scheduler: QueueScheduler, *, drain: bool = False) -> Asking:
    """Run a trace to its end, or with `drain` until every job has ended; the window is the trace's."""
    return _World(grid, trace, scheduler, drain=drain).run()


def together(runs: Sequence[Asking], scheduler: QueueScheduler) -> list[QueueOutcome]:
    """Answer many runs in lock-step with one scheduler."""
    outcomes: dict[int, QueueOutcome] = {}
    asking: dict[int, QueueSnapshot] = {}
    answers: dict[int, Placement | None] = dict.fromkeys(range(len(runs)))
    while answers:
        for i, answer in answers.items():
            try:
                asking[i] = runs[i].send(answer)
            except StopIteration as end:
                asking.pop(i, None)
                outcomes[i] = end.value
        answers = dict(zip(asking, scheduler.place(list(asking.values())), strict=True)) if asking else {}
    return [outcomes[i] for i in range(len(runs))]


class _World:
    """The mutable state of one run."""

    def __init__(self, grid: Grid, trace: QueueTrace, scheduler: QueueScheduler, *, drain: bool) -> None:
        self.grid, self.trace, self.scheduler, self.drain = grid, trace, scheduler, drain
        self.now_s = 0.0
        self.free = list(grid.nodes)
        self.sharing = [0] * len(grid.pairs)
        self.regimes = trace.regimes[0]
        self.bandwidth = grid.bandwidth_now(self.regimes)
        self.running: dict[int, _Run] = {}
        self.queues: list[list[QueuedJob]] = [[] for _ in (grid.nodes if scheduler.has_home_queues else (0,))]
        self.refused = [math.inf] * len(self.queues)  # the least size refused since the last change
        self.ends: list[tuple[float, int, int, int]] = []
        self.made = 0
        count = len(trace.jobs)
        self.books = Books([math.inf] * count, [math.inf] * count)

    def run(self) -> Asking:
        """Take events in order of time: ends first, then looks at the links, then arrivals."""
        jobs, arrived, tick = self.trace.jobs, 0, 1
        end_s = math.inf if self.drain else self.trace.end_s
        while True:
            arrival_s = jobs[arrived].arrival_s if arrived < len(jobs) else math.inf
            tick_s = tick * STEP_S
            job_end_s = self.ends[0][0] if self.ends else math.inf
            next_s = min(arrival_s, tick_s, job_end_s)
            is_over = arrived == len(jobs) and not self.running and not any(self.queues)
            if next_s > end_s or is_over:
                break
            self.now_s = next_s
            if job_end_s == next_s:
                _, _, number, version = heapq.heappop(self.ends)
                run = self.running.get(number)
                if run is None or run.version != version:
                    continue
                self._end(run)
                yield from self._serve_all()
            elif tick_s == next_s:
                self._look(self.trace.regimes[min(tick, len(self.trace.regimes) - 1)])
                tick += 1
                if self.scheduler.has_moves:
                    yield from self._reconsider()
                    yield from self._serve_all()
            else:
                yield from self._arrive(jobs[arrived])
                arrived += 1
            self.books.events += 1
        self.now_s = min(end_s, self.now_s) if self.drain else end_s
        for run in self.running.values():
            self._account(run)
        return summary(self.grid, self.trace, starts_s=self.books.starts_s, ends_s=self.books.ends_s,
                       useful_node_s=self.books.useful_node_s, held_node_s=self.books.held_node_s,
                       spans=self.books.spans, moves=self.books.moves, events=self.books.events,
                       order=tuple(self.books.order))  # fmt: skip

    def _arrive(self, job: QueuedJob) -> Generator[QueueSnapshot, Placement | None, None]:
        key = job.home if self.scheduler.has_home_queues else 0
        self.queues[key].append(job)
        if job.nodes < self.refused[key]:
            yield from self._serve(key)

    def _serve_all(self) -> Generator[QueueSnapshot, Placement | None, None]:
        for key in range(len(self.queues)):
            yield from self._serve(key)

    def _serve(self, key: int) -> Generator[QueueSnapshot, Placement | None, None]:
        """Start what the scheduler starts, head first; a job as large as one just refused is not asked about."""
        queue, refused, i = self.queues[key], math.inf, 0
        while i < min(len(queue), DEPTH + 1) and refused > 1:
            job = queue[i]
            strict = i == 0 and (
                not self.scheduler.backfill or self.now_s - job.arrival_s > self.scheduler.patience_s
            )
            if job.nodes < refused and job.nodes <= sum(self.free):
                behind = tuple(queue[i + 1 : i + 1 + DEPTH])
                placement = yield self._snapshot(job, behind=behind, is_strict=strict)
                if placement is not None:
                    del queue[i]
                    self._start(job, placement)
                    continue
            refused = 0 if strict else min(refused, job.nodes)
            i += 1
        self.refused[key] = refused

    def _snapshot(
        self,
        job: QueuedJob,
        *,
        behind: tuple[QueuedJob, ...] = (),
        is_strict: bool = False,
        current: _Run | None = None,
    ) -> QueueSnapshot:
        free, sharing = list(self.free), list(self.sharing)
        if current is not None:
            for domain, nodes in current.view.placement:
                free[domain] += nodes
            for link in current.view.links:
                sharing[link] -= 1
        others = tuple(run.view for run in self.running.values() if run is not current)
        return QueueSnapshot(self.grid, self.now_s, job, tuple(free), self.regimes, tuple(sharing), others, behind,
                        is_strict, None if current is None else current.view)  # fmt: skip

    def _start(self, job: QueuedJob, placement: Placement) -> None:
        self.books.starts_s[job.number] = self.now_s
        self.books.order.append(job.number)
        self.books.spans += len(placement) > 1
        links = self._take(job, placement)
        view = RunningJob(job, placement, links, self._speed(job, links), self.now_s, job.declared_node_s)
        run = self.running[job.number] = _Run(view, job.work_node_s, self.now_s)
        self._promise(run)
        self._refresh(links, but=job.number)

    def _end(self, run: _Run) -> None:
        self._account(run)
        assert abs(run.left_node_s) <= 1e-6 * run.view.job.work_node_s + 1e-6, "a job ends when its work is done"
        del self.running[run.view.job.number]
        self.books.ends_s[run.view.job.number] = self.now_s
        self._give_back(run)
        self._refresh(run.view.links)

    def _look(self, regimes: tuple[int, ...]) -> None:
        changed = tuple(i for i, (old, new) in enumerate(zip(self.regimes, regimes, strict=True)) if old != new)
        if changed:
            self.regimes, self.bandwidth = regimes, self.grid.bandwidth_now(regimes)
            self._refresh(changed)

    def _reconsider(self) -> Generator[QueueSnapshot, Placement | None, None]:
        """Ask about every spanning job whether it should run elsewhere."""
        for run in [run for run in self.running.values() if run.view.links and run.touched_s <= self.now_s]:
            behind = tuple(self.queues[0][:DEPTH])
            placement = yield self._snapshot(run.view.job, behind=behind, current=run)
            if placement is not None and placement != run.view.placement:
                self._move(run, placement)

    def _move(self, run: _Run, placement: Placement) -> None:
        self._account(run)
        self._give_back(run)
        job, old = run.view.job, run.view
        pause_s = self.grid.switch_s(
            job, [d for d, _ in old.placement], [d for d, _ in placement],
            bandwidth_bytes_per_s=self.bandwidth, sharing=self.sharing,
        )  # fmt: skip
        left = max(0.0, old.told_left_node_s - self._progress(old, self.now_s))
        links = self._take(job, placement)
        run.touched_s = self.now_s + pause_s
        run.view = RunningJob(job, placement, links, self._speed(job, links), run.touched_s, left)
        self.books.moves += 1
        self._promise(run)
        self._refresh((*old.links, *links), but=job.number)

    def _take(self, job: QueuedJob, placement: Placement) -> tuple[int, ...]:
        assert sum(nodes for _, nodes in placement) == job.nodes, "a placement has the job's nodes"
        for domain, nodes in placement:
            assert 0 < nodes <= self.free[domain], "no node is given twice"
            self.free[domain] -= nodes
        links = self.grid.between([domain for domain, _ in placement])
        for link in links:
            self.sharing[link] += 1
        return links

    def _give_back(self, run: _Run) -> None:
        for domain, nodes in run.view.placement:
            self.free[domain] += nodes
        for link in run.view.links:
            self.sharing[link] -= 1

    def _speed(self, job: QueuedJob, links: tuple[int, ...]) -> float:
        return self.grid.speed(job, links, bandwidth_bytes_per_s=self.bandwidth, sharing=self.sharing)

    def _refresh(self, links: tuple[int, ...], *, but: int = -1) -> None:
        """Give every job on these links its new speed."""
        if not links:
            return
        for number, run in self.running.items():
            view = run.view
            if number == but or not view.links or not any(link in links for link in view.links):
                continue
            speed = self._speed(view.job, view.links)
            if speed != view.speed:
                self._account(run)
                left = max(0.0, view.told_left_node_s - self._progress(view, self.now_s))
                since_s = max(self.now_s, view.since_s)
                run.view = RunningJob(view.job, view.placement, view.links, speed, since_s, left)
                self._promise(run)

    @staticmethod
    def _progress(view: RunningJob, now_s: float) -> float:
        return max(0.0, now_s - view.since_s) * view.job.nodes * view.speed

    def _promise(self, run: _Run) -> None:
        """Set the end of a job by its present speed; an older promise is void."""
        run.version = self.made = self.made + 1
        rate = run.view.job.nodes * run.view.speed
        if rate > 0:
            end_s = max(run.touched_s, self.now_s) + run.left_node_s / rate
            heapq.heappush(self.ends, (end_s, self.made, run.view.job.number, run.version))

    def _account(self, run: _Run) -> None:
        """Book what a job did since it was last touched; node-seconds of a restart are held, not useful."""
        nodes, rate = run.view.job.nodes, run.view.job.nodes * run.view.speed
        begin_s, end_s = run.touched_s, self.now_s
        if end_s <= begin_s:
            return
        run.left_node_s -= rate * (end_s - begin_s)
        run.touched_s = end_s
        inside_s = max(0.0, min(end_s, self.trace.end_s) - max(begin_s, self.trace.start_s))
        self.books.useful_node_s += rate * inside_s
        self.books.held_node_s += nodes * inside_s
