"""Instances stacked into padded arrays, so that a step of thousands of environments is a few gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Bools, Floats, Ints
from strata.learning.worlds.instance import Instance, JobKind, random_instances
from strata.training.replan.arrays import Array, moved
from strata.training.replan.response import pair_numbers


class ByLink(NamedTuple):
    """The links of one slot [some, R]: pair, a and m of the first options; no later one has a link there."""

    pair: Array
    serial_s: Array
    steady_s: Array


@dataclass(frozen=True, eq=False, slots=True)
class Pool:
    """I instances of C kinds of job each. Letters as in `instance.py`; option 0 is to wait: T is inf.

    devices                        [I, K]     0 for a domain that does not exist
    bandwidth, latency             [I, K, K]  nominal [B/s], [s]; 0 where there is no link
    pair                           [R, P, l]  links used; Q (one past the last) for padding, which comes last
    serial_s, steady_s, wait_s     [R, P, l]  see `response.py`
    compute_s, hidden_s, lag_s     [R, P]
    needs, memory                  [R, P, K]  devices; share of each domain's memory
    busy_s                         [R, P]     utilisation x step time: useful seconds of a device in a step
    usd                            [R, P]     egress a step relative to the dearest option; 1 for waiting
    moved_s, moved                 [R, P, P]  weights moved: seconds, and USD relative to the dearest option's step
    moves                          [R, P, P]  whether a switch needs a restart
    reference_s                    [R]        step of the best single domain at nominal links
    exists                         [R, P]
    """

    instances: tuple[Instance, ...]
    devices: Floats
    bandwidth: Floats
    latency: Floats
    pair: Ints
    serial_s: Floats
    steady_s: Floats
    wait_s: Floats
    compute_s: Floats
    hidden_s: Floats
    lag_s: Floats
    needs: Floats
    memory: Floats
    busy_s: Floats
    usd: Floats
    moved_s: Floats
    moved: Floats
    moves: Bools
    reference_s: Floats
    exists: Bools

    @property
    def num_kinds(self) -> int:
        """C."""
        return len(self.instances[0].kinds)

    @property
    def num_options(self) -> int:
        """P."""
        return int(self.compute_s.shape[1])

    @property
    def num_domains(self) -> int:
        """K."""
        return int(self.devices.shape[1])

    @property
    def num_pairs(self) -> int:
        """Q."""
        return max(1, self.num_domains * (self.num_domains - 1) // 2)

    def on(self, device: str | None) -> Pool:
        """Return the pool with its arrays as torch's on a device; as it is for None."""
        names = [part.name for part in fields(self) if part.name != "instances"]
        return replace(self, **{name: moved(getattr(self, name), device) for name in names})

    def by_link(self, device: str | None = None) -> list[ByLink]:
        """Return the links of all options, slot by slot, as far as any kind of job has options that use it."""
        used = np.asarray((self.pair < self.num_pairs).any(axis=0))  # [P, l]
        padded = []
        for slot in range(self.pair.shape[2]):
            some = slice(0, int(np.flatnonzero(np.append(True, used[:, slot]))[-1]))
            serial, steady = (
                np.asarray(t[:, some, slot].T, dtype=np.float32) for t in (self.serial_s, self.steady_s)
            )
            tables: tuple[Array, ...] = self.pair[:, some, slot].T.copy(), serial, steady
            padded.append(ByLink(*(moved(table, device) for table in tables)))
        return [slot for slot in padded if len(slot.pair)]

    def terms(self) -> NDArray[np.float32]:
        """Return compute, all latencies, O, y and the number of links of each option [5, P, R]."""
        links = (self.pair < self.num_pairs).sum(axis=2)
        rest = (self.compute_s, self.wait_s.sum(axis=2), self.hidden_s, self.lag_s, links)
        return np.stack([table.T for table in rest]).astype(np.float32)

    @classmethod
    def of(cls, instances: Sequence[Instance]) -> Pool:
        """Stack instances that have the same number of kinds."""
        kinds = [kind for instance in instances for kind in instance.kinds]
        owner = [instance for instance in instances for _ in instance.kinds]
        rows, each = len(kinds), len(instances)
        domains = max(len(instance.fleet.domains) for instance in instances)
        options = 1 + max(len(kind.plans) for kind in kinds)
        links = max(kind.response.pair.shape[1] for kind in kinds)
        pairs = max(1, domains * (domains - 1) // 2)
        numbers = pair_numbers(domains)
        devices = np.zeros((each, domains))
        bandwidth, latency = np.zeros((2, each, domains, domains))
        for i, instance in enumerate(instances):
            k = len(instance.fleet.domains)
            devices[i, :k] = [domain.num_devices for domain in instance.fleet.domains]
            bandwidth[i, :k, :k] = np.nan_to_num(instance.fleet.bandwidth_bytes_per_s(), posinf=0.0)
            latency[i, :k, :k] = np.nan_to_num(instance.fleet.latency_s(), posinf=0.0)
        pair = np.full((rows, options, links), pairs)
        wires = np.zeros((3, rows, options, links))
        serial, steady, wait = wires
        compute, hidden, lag = np.full((rows, options), np.inf), *np.zeros((2, rows, options))
        busy, usd = np.zeros((rows, options)), np.ones((rows, options))
        needs, memory = np.zeros((2, rows, options, domains))
        moved_s, moved = np.zeros((2, rows, options, options))
        moves = np.zeros((rows, options, options), dtype=bool)
        exists = np.zeros((rows, options), dtype=bool)
        exists[:, 0] = True
        for r, (kind, instance) in enumerate(zip(kinds, owner, strict=True)):
            some, use, k = slice(1, 1 + len(kind.plans)), kind.response, len(instance.fleet.domains)
            width = use.pair.shape[1]
            upper = numbers[np.triu_indices(k, 1)]  # numbers of this fleet's pairs among all K domains
            pair[r, some, :width] = np.append(upper, pairs)[use.pair]
            for target, source in zip(wires, (use.serial_s, use.steady_s, use.wait_s), strict=True):
                target[r, some, :width] = source
            compute[r, some], hidden[r, some], lag[r, some] = use.compute_s, use.hidden_s, use.lag_s
            exists[r, some] = True
            busy[r, some] = kind.utilization * kind.nominal_s
            dearest = _dearest_usd(kind)
            usd[r, some] = kind.egress_usd / dearest
            needs[r, some, :k], memory[r, some, :k] = kind.devices, kind.memory
            moved_s[r, some, some], moved[r, some, some] = kind.moved_s, kind.moved_usd / dearest
            moves[r, some, some] = kind.moves
        return cls(
            tuple(instances), devices, bandwidth, latency, pair, serial, steady, wait, compute, hidden, lag,
            needs, memory, busy, usd, moved_s, moved, moves, np.array([k.reference_s for k in kinds]), exists,
        )  # fmt: skip


def _dearest_usd(kind: JobKind) -> float:
    return float(kind.egress_usd.max()) or 1.0


VARIANTS: Final = 5
"""Instances on the same sites with links of other speed: plans are searched once for all of them."""


SHARES: Final = (0.25, 0.5, 1.0)
"""Of each domain's nodes, what plans of the kinds of jobs are made for."""


def make_pool(
    seed: int,
    *,
    instances: int = 64,
    domains: tuple[int, int] = (4, 8),
    shares: Sequence[float] = SHARES,
    options: int = 32,
    calm: float = 0.25,
) -> Pool:
    """Return a pool of random instances of `domains` (least, most), the same for the same seed.

    Where one plan is best in every state there is nothing to decide: at most the share `calm` of the instances
    are such that in no kind of job another plan is best in at least a tenth of the states.
    """
    rng = np.random.default_rng(seed)
    drawn: list[Instance] = []
    quiet = 0
    while len(drawn) < instances:
        count = int(rng.integers(domains[0], domains[1] + 1))
        for instance in random_instances(rng, domains=count, variants=VARIANTS, shares=shares, options=options):
            if max(kind.changes for kind in instance.kinds) < 0.1:
                if quiet >= calm * instances:
                    continue
                quiet += 1
            drawn.append(instance)
    return Pool.of(drawn[:instances])
