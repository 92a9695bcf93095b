"""What the ranks of an attempt are started with, whatever starts them: the rank map and their environment."""

from __future__ import annotations

import re
import shlex
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from strata.control.state import Start
from strata.fleet.fleet import Fleet
from strata.training.export.launch import launch_data
from strata.training.export.ranks import RankLayout, RankMap, rank_map

_FIRST_PORT, _NUM_PORTS = 20_000, 12_000  # below what Linux hands out to those who ask for any (32768)


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all drivers share. root: the scheduler's folder.

    addresses: of domains, as their peers reach them; None where it is known only once something runs there.
    """

    root: Path
    fleet: Fleet
    addresses: Mapping[str, str | None]

    def checkpoints(self, job: str) -> Path:
        """Return the folder of a job's checkpoints."""
        return self.root / "checkpoints" / safe(job)

    def domain(self, name: str) -> Path:
        """Return the folder of the parts of a domain."""
        return self.root / "domains" / safe(name)

    def part(self, domain: str, attempt: str) -> Path:
        """Return the folder of a domain's part of an attempt."""
        return self.domain(domain) / safe(attempt)


@dataclass(frozen=True, slots=True)
class Launch:
    """The part of one domain. ranks_json: the whole rank map. environments: of each rank here, by its number.

    nodes: the ranks of each node here. Without MASTER_ADDR in the environments the address of rank 0 is known only
    once it runs.
    """

    ranks_json: dict[str, Any]
    environments: Mapping[int, Mapping[str, str]]
    nodes: tuple[tuple[int, ...], ...] = ()


def _port(attempt: str, workplace: Workplace) -> int:
    """Return where an attempt's ranks meet: one number for all its domains, another for another scheduler's."""
    return _FIRST_PORT + zlib.crc32(f"{workplace.root.absolute()} {attempt}".encode()) % _NUM_PORTS


def launch_of(start: Start, workplace: Workplace, folder: Path) -> Launch:
    """Return what a domain's ranks are started with; `folder` is the part's, as they see it."""
    attempt, spec = start.attempt, start.spec
    ranks = _rank_map(start, workplace)
    local = {node: len(held) for node, held in ranks.nodes().items()}
    shared = {
        "STRATA_JOB": spec.name,
        "STRATA_ATTEMPT": str(attempt.number),
        "STRATA_STEPS": str(spec.steps),
        "STRATA_SAVE_EVERY": str(spec.save_every if spec.can_resume else 0),  # else there is no place to save to
        "STRATA_GRACE_S": f"{spec.grace_s:g}",
        "STRATA_RANKS": str(folder / RANKS),
        "STRATA_PROGRESS": str(folder / PROGRESS),
        "MASTER_PORT": str(_port(attempt.id, workplace)),
        "WORLD_SIZE": str(len(ranks.ranks)),
    }
    address = workplace.addresses[ranks.ranks[0].domain]
    if address is not None:
        shared["MASTER_ADDR"] = address
    if spec.can_resume:
        shared["STRATA_CHECKPOINTS"] = str(workplace.checkpoints(spec.name))
    environments = {
        rank.rank: {
            **shared,
            "RANK": str(rank.rank),
            "LOCAL_RANK": str(rank.local_rank),
            "LOCAL_WORLD_SIZE": str(local[rank.domain, rank.node]),
        }
        for rank in ranks.ranks
        if rank.domain == start.domain
    }
    nodes = (held for (domain, _), held in ranks.nodes().items() if domain == start.domain)
    return Launch(
        launch_data(ranks, attempt.plan), environments, tuple(tuple(rank.rank for rank in held) for held in nodes)
    )


def search_path(path: str) -> str:
    """Return PATH with this Python's folder first: `python` in a job is the one that strata runs with."""
    return f"{Path(sys.executable).parent}:{path}"


def filled(name: str, **values: str) -> str:
    """Return a shell script that lies beside this file, with values where it says `__NAME__`."""
    text = (Path(__file__).parent / f"{name}.sh").read_text()
    return re.sub(r"__([A-Z_]+?)__", lambda match: values[match[1].lower()], text)


def exports(values: Mapping[str, str]) -> str:
    """Return values as lines of a shell script."""
    return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in values.items())


def safe(name: str) -> str:
    """Return a name as one file name: nothing in it leads elsewhere."""
    return quote(name, safe=" ").replace(".", "%2E") if name.startswith(".") else quote(name, safe=" ")


def _rank_map(start: Start, workplace: Workplace) -> RankMap:
    domains = {domain.name: domain for domain in workplace.fleet.domains}
    names = start.attempt.plan.domains
    return rank_map(
        RankLayout(
            start.attempt.plan,
            {name: domains[name].num_devices for name in names},
            {name: domains[name].devices_per_node for name in names},
            {name: domains[name].accelerator.name for name in names},
        )
    )


RANKS: Final = "ranks.json"
PROGRESS: Final = "progress.jsonl"
