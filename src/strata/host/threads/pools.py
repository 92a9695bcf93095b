"""The nine pools of threads of a training job, and the four layers they belong to, as `pools.toml` has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from strata.bundled import bundled_table

Pool = Literal[
    "kernel-launch",
    "accelerator-monitor",
    "comms-monitor",
    "openmp",
    "transforms",
    "loading",
    "checkpoint",
    "rpc",
    "routing",
]
LayerName = Literal["critical", "pipeline", "support", "rest"]


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool: what it is, how much its latency matters (5 most), its layer, and labels that name it."""

    text: str
    importance: int
    layer: LayerName
    labels: tuple[str, ...]


_Rule = tuple[Pool, re.Pattern[str], float]
"""A pool, what a name has, and how much that says (1: everything)."""


def _rules(entries: list[tuple[Pool, str, float]]) -> tuple[_Rule, ...]:
    return tuple((pool, re.compile(pattern, re.IGNORECASE), weight) for pool, pattern, weight in entries)


_DATA: Final = bundled_table("strata.host.threads", "pools.toml")
POOLS: Final[Mapping[Pool, PoolFacts]] = {
    pool: PoolFacts(**facts | {"labels": tuple(facts["labels"])}) for pool, facts in _DATA["pools"].items()
}
LAYERS: Final[Mapping[LayerName, str]] = _DATA["layers"]
THREADS: Final = _rules(_DATA["threads"])
CGROUPS: Final = _rules(_DATA["cgroups"])


def of_thread(name: str) -> tuple[Pool, float] | None:
    """Return the pool a thread's name speaks for, and how much."""
    return next(((pool, weight) for pool, pattern, weight in THREADS if pattern.match(name)), None)


def of_cgroup(path: str) -> tuple[Pool, float] | None:
    """Return the pool a cgroup's path speaks for, and how much."""
    return next(((pool, weight) for pool, pattern, weight in CGROUPS if pattern.search(path)), None)


def stem(name: str) -> str:
    """Return a name without its number: what the threads of one pool share."""
    return re.sub(r"[\d\s_:/#-]+$", "", name) or name
