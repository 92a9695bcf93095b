"""The fixed schedulers: pure rules of a snapshot, from home queues to greedy spanning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

from strata.evaluation.queueing.grid import MAX_SPAN, Grid, Placement
from strata.evaluation.queueing.snapshot import Place, QueueScheduler, QueueSnapshot

Rule = Callable[[QueueSnapshot], Placement | None]


def each(rule: Rule) -> Place:
    """Return a rule as the answer to many questions."""
    return lambda snapshots: [rule(snapshot) for snapshot in snapshots]


def home_domain(snapshot: QueueSnapshot) -> Placement | None:
    """The job's home, or wait."""
    job = snapshot.job
    return ((job.home, job.nodes),) if snapshot.free[job.home] >= job.nodes else None


def worst_fit(snapshot: QueueSnapshot) -> Placement | None:
    """The domain with the most free nodes: balances load, breaks up large holes."""
    free, nodes = snapshot.free, snapshot.job.nodes
    most = max(free)
    return ((free.index(most), nodes),) if most >= nodes else None


def best_fit(snapshot: QueueSnapshot) -> Placement | None:
    """MAST-like: any one domain, the one with the least left over; never two."""
    nodes = snapshot.job.nodes
    fitting = [(free - nodes, domain) for domain, free in enumerate(snapshot.free) if free >= nodes]
    return ((min(fitting)[1], nodes),) if fitting else None


def greedy_span(snapshot: QueueSnapshot) -> Placement | None:
    """One domain if the job fits, else the set it runs fastest on now. A running job is left alone."""
    if snapshot.current is not None:
        return None
    single = best_fit(snapshot)
    if single is not None:
        return single
    candidates = spans(snapshot)
    return max(candidates, key=lambda candidate: candidate[1])[0] if candidates else None


def spans(snapshot: QueueSnapshot) -> list[tuple[Placement, float]]:
    """Return the pairs of domains, or else the triples, whose free nodes hold the job, and its speed on each."""
    grid, job = snapshot.grid, snapshot.job
    open_domains = [domain for domain, free in enumerate(snapshot.free) if free]
    for count in range(2, MAX_SPAN + 1):
        sets = [
            domains
            for domains in combinations(open_domains, count)
            if sum(snapshot.free[domain] for domain in domains) >= job.nodes
        ]
        if sets:
            return [(share_out(snapshot.free, domains, job.nodes), speed_on(grid, snapshot, domains))
                    for domains in sets if job.nodes >= count]  # fmt: skip
    return []


def speed_on(grid: Grid, snapshot: QueueSnapshot, domains: Sequence[int]) -> float:
    """Return how fast the job would run on these domains now, beside the jobs that span their links."""
    links = grid.between(domains)
    sharing = {link: snapshot.sharing[link] + 1 for link in links}
    bandwidth = {
        link: grid.bandwidth_bytes_per_s[link] * grid.forecast[0][snapshot.regimes[link]] for link in links
    }
    return grid.speed(snapshot.job, links, bandwidth_bytes_per_s=bandwidth, sharing=sharing)


def share_out(free: Sequence[int], domains: Sequence[int], nodes: int) -> Placement:
    """Return a job's nodes on these domains: small holes are used up first, each domain gets at least one."""
    left, parts = nodes, []
    smallest_first = sorted(domains, key=lambda domain: (free[domain], domain))
    for after, domain in zip(range(len(domains) - 1, -1, -1), smallest_first, strict=True):
        taken = min(free[domain], left - after)
        parts.append((domain, taken))
        left -= taken
    return tuple(sorted(parts))


HOME = QueueScheduler("home_domain", each(home_domain), has_home_queues=True)
WORST_FIT = QueueScheduler("worst_fit", each(worst_fit))
MAST_LIKE = QueueScheduler("mast_like", each(best_fit))
GREEDY_SPAN = QueueScheduler("greedy_span", each(greedy_span))
FIXED = (HOME, WORST_FIT, MAST_LIKE, GREEDY_SPAN)
