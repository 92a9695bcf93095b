"""The options of one question, in the form every policy decides on: wait or keep, each domain, a few spans.

The value of an option is what it adds to the useful rate of the whole system, per node of the job: what the job
gives, less what jobs on the same links lose, less what jobs behind it would have made of its nodes. So a slow
span that takes nodes others could use is worth less than to wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.arrays import Ints
from strata.evaluation.queueing.grid import STEP_S, Placement
from strata.evaluation.queueing.placing import best_fit, greedy_span, spans
from strata.evaluation.queueing.snapshot import QueueScheduler, QueueSnapshot, RunningJob
from strata.training.replan.options import HORIZONS, Options

MAX_SPANS: Final = 6
"""Spanning options, the fastest ones now."""

PRICE: Final = 0.8
"""Useful nodes that jobs which wait would make of a node: about what the domains reach under load."""

LEAST_SPEED: Final = 0.5
"""A slower span is not offered: it holds its nodes more than twice as long as one domain would, also after the
queue that could use them has come. This and PRICE were chosen on seeds that no reported figure uses."""

LATE: Final = 0.4
"""Of the time its user said, what is added before a job is counted on to be over: with what users say spread as
in `trace.py` three of four are."""

PREFERENCE: Final = (0.0, 1.0, 0.0)
"""Utilisation alone."""

Choose = Callable[[Options], Ints]


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """One way to answer: useful nodes of the job [H], what others lose by it, and the cost in nodes x steps."""

    placement: Placement | None
    own: tuple[float, ...]
    harm: float = 0.0
    cost: float = 0.0
    links: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)


def scheduler(choose: Choose, *, name: str = "hi_ppo") -> QueueScheduler:
    """Return the scheduler that asks `choose` where there is something to weigh: whether a job waits or spans, and
    whether a spanning job moves. A pick that is no option is answered by greedy span instead.
    """

    def place(snapshots: Sequence[QueueSnapshot]) -> list[Placement | None]:
        # A waiting job that fits one domain goes there: at every horizon no other option is worth more.
        answers = [best_fit(snapshot) if snapshot.current is None else None for snapshot in snapshots]
        listed = {i: choices(snapshots[i]) for i, answer in enumerate(answers) if answer is None}
        open_choices = {i: choices_of_job for i, choices_of_job in listed.items() if len(choices_of_job) > 1}
        if not open_choices:
            return answers
        options = batch([snapshots[i] for i in open_choices], list(open_choices.values()))
        for (i, choices_of_job), pick in zip(open_choices.items(), choose(options).tolist(), strict=True):
            answers[i] = (
                choices_of_job[pick].placement if 0 <= pick < len(choices_of_job) else greedy_span(snapshots[i])
            )
        return answers

    return QueueScheduler(name, place, has_moves=True)


def choices(snapshot: QueueSnapshot) -> list[PlacementChoice]:
    """Return what may be answered: to wait, or to keep what runs; domains, least left over first; spans.

    A running job is not offered a move that its remaining work, by what its user said, cannot pay back.
    """
    job, current = snapshot.job, snapshot.current
    fitting = sorted((free, domain) for domain, free in enumerate(snapshot.free) if free >= job.nodes)
    choices = [
        PlacementChoice(((domain, job.nodes),), (float(job.nodes),) * len(HORIZONS)) for _, domain in fitting
    ]
    fastest = sorted(spans(snapshot), key=lambda span: -span[1])[:MAX_SPANS]
    choices += [_span(snapshot, placement) for placement, speed in fastest if speed >= LEAST_SPEED]
    if current is None:
        wanted = 0 if snapshot.is_strict else sum(other.nodes for other in snapshot.behind)
        price = PRICE * min(job.nodes, wanted)
        return [_wait(snapshot, price), *(replace(choice, harm=choice.harm + price) for choice in choices)]
    moves = [_moved(snapshot, current, choice) for choice in choices if choice.placement != current.placement]
    return [_keep(snapshot, current), *(move for move in moves if move is not None)]


def batch(snapshots: Sequence[QueueSnapshot], listed: Sequence[Sequence[PlacementChoice]]) -> Options:
    """Return many questions and their choices as one Options; rows are padded with options that are not legal."""
    rows, most = len(listed), max(len(choices) for choices in listed)
    own = np.zeros((rows, most, len(HORIZONS)))
    harm, cost, links = np.zeros((rows, most)), np.zeros((rows, most)), np.ones((rows, most, 4))
    legal = np.zeros((rows, most), dtype=np.bool_)
    for i, choices in enumerate(listed):
        count = len(choices)
        own[i, :count] = [choice.own for choice in choices]
        harm[i, :count] = [choice.harm for choice in choices]
        cost[i, :count] = [choice.cost for choice in choices]
        links[i, :count] = [choice.links for choice in choices]
        legal[i, :count] = True
    nodes = np.array([snapshot.job.nodes for snapshot in snapshots], dtype=np.float64)
    return Options(
        value=(own - harm[..., None]) / nodes[:, None, None],
        cost=cost / nodes[:, None],
        links=links,
        current=np.zeros(rows, dtype=np.int64),
        legal=legal,
        preference=np.tile(np.asarray(PREFERENCE), (rows, 1)),
    )


def _wait(snapshot: QueueSnapshot, price: float) -> PlacementChoice:
    """Nothing now; from when some domain is expected to have room, what a domain gives.

    Holes that jobs behind would fill meanwhile do not count as room.
    """
    nodes, room_s = snapshot.job.nodes, math.inf
    others = 0 if snapshot.is_strict else sum(job.nodes for job in snapshot.behind)
    for domain, free in enumerate(snapshot.free):
        room = max(0, free - others)
        ends = sorted(
            (_expected_left_s(run, snapshot.now_s), count)
            for run in snapshot.running
            for where, count in run.placement
            if where == domain
        )
        for end_s, count in ends:
            room += count
            if room >= nodes:
                room_s = min(room_s, end_s)
                break
    return PlacementChoice(None, tuple(nodes - price if ahead * STEP_S >= room_s else 0.0 for ahead in HORIZONS))


def _expected_left_s(run: RunningJob, now_s: float) -> float:
    """Return the time by which a job is counted on to be over."""
    return run.told_left_s(now_s) + LATE * run.job.declared_node_s / run.job.nodes


def _keep(snapshot: QueueSnapshot, current: RunningJob) -> PlacementChoice:
    here = _span(snapshot, current.placement)
    return PlacementChoice(None, here.own, here.harm, 0.0, here.links)


def _span(snapshot: QueueSnapshot, placement: Placement) -> PlacementChoice:
    """A placement on links: its speed now and as the links are expected to be, and what others lose."""
    grid, job = snapshot.grid, snapshot.job
    links = grid.between([domain for domain, _ in placement])
    sharing = {link: snapshot.sharing[link] + 1 for link in links}
    own, lowest = [], []
    for factors in grid.forecast:
        bandwidth = {link: grid.bandwidth_bytes_per_s[link] * factors[snapshot.regimes[link]] for link in links}
        own.append(job.nodes * grid.speed(job, links, bandwidth_bytes_per_s=bandwidth, sharing=sharing))
        lowest.append(min(factors[snapshot.regimes[link]] for link in links))
    stay = [grid.stay[snapshot.regimes[link]] for link in links]
    features = (lowest[0], lowest[-1], sum(stay) / len(stay), min(stay))
    return PlacementChoice(placement, tuple(own), _harm(snapshot, links), 0.0, features)


def _harm(snapshot: QueueSnapshot, links: tuple[int, ...]) -> float:
    """Return the useful nodes that running jobs on these links lose when one more job comes."""
    grid, lost = snapshot.grid, 0.0
    bandwidth = None
    for run in snapshot.running:
        if any(link in links for link in run.links):
            bandwidth = bandwidth or grid.bandwidth_now(snapshot.regimes)
            sharing = {link: snapshot.sharing[link] + (link in links) for link in run.links}
            speed = grid.speed(run.job, run.links, bandwidth_bytes_per_s=bandwidth, sharing=sharing)
            lost += run.job.nodes * (run.speed - speed)
    return lost


def _moved(snapshot: QueueSnapshot, current: RunningJob, choice: PlacementChoice) -> PlacementChoice | None:
    """Return a choice as a move of a running job, its pause as cost, or None where it cannot pay."""
    assert choice.placement is not None
    switch_s = snapshot.grid.switch_s(
        snapshot.job, [domain for domain, _ in current.placement], [domain for domain, _ in choice.placement],
        bandwidth_bytes_per_s=snapshot.grid.bandwidth_now(snapshot.regimes), sharing=snapshot.sharing,
    )  # fmt: skip
    speed = choice.own[0] / snapshot.job.nodes
    left_s = current.told_left_s(snapshot.now_s)
    if math.isinf(switch_s) or switch_s + left_s * current.speed / speed >= left_s:
        return None
    return PlacementChoice(
        choice.placement, choice.own, choice.harm, choice.own[0] * switch_s / STEP_S, choice.links
    )
