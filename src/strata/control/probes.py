"""Measuring links between domains with a bounded share of them: an agent in every domain's network."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from strata.clock import Clock
from strata.control.drivers.slurm_tools import SlurmCluster
from strata.control.state import LinkSeen, Probe
from strata.fleet.fleet import Fleet
from strata.fleet.schema import DriverEntry, LocalEntry, SlurmEntry

SHARE: Final = 0.01
_LEAST_BYTES: Final = 20_000
_LATE_S: Final = 15.0
_BEGIN_S: Final = 120.0
_END_S: Final = 5.0


@dataclass(slots=True)
class _Agent:
    process: subprocess.Popen[str]
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class _Command:
    """What starts an agent. address: where its peers reach it, None for what it says itself."""

    words: tuple[str, ...]
    address: str | None
    environment: Mapping[str, str] | None


class Prober:
    """Agents in the domains that have a network of their own, for as long as the `with` block runs.

    A probe takes at most `share` of what its link carries in `every_s`, as the fleet states it. with_jobs: of a
    Slurm cluster an agent is a job of one task.
    """

    def __init__(
        self,
        fleet: Fleet,
        entries: Mapping[str, DriverEntry],
        *,
        clock: Clock,
        every_s: float,
        share: float = SHARE,
        with_jobs: bool = False,
    ) -> None:
        self._fleet, self._clock, self._every_s, self._share = fleet, clock, every_s, share
        self._commands = {name: start for name, entry in entries.items() if (start := _start(entry, with_jobs))}
        self._agents: dict[str, _Agent] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self._agents.values():
            with suppress(OSError):
                _pipe(agent.process.stdin).close()  # its end: of a job in a cluster, too
        for agent in self._agents.values():
            with suppress(subprocess.TimeoutExpired):
                agent.process.wait(_END_S)
            agent.process.kill()
            agent.process.wait()
            _pipe(agent.process.stdout).close()

    def probe(self, probe: Probe) -> LinkSeen | None:
        """Measure a directed link, 0 bytes/s where nothing came; None where an end has no network of its own."""
        if not self.reaches(probe.source, probe.dest):
            return None
        nominal = self._fleet.links[probe.source, probe.dest].bandwidth_bytes_per_s
        num_bytes = max(_LEAST_BYTES, round(nominal * self._every_s * self._share))
        return self.send(probe.source, probe.dest, num_bytes)

    def reaches(self, source: str, dest: str) -> bool:
        """Whether both ends have a network of their own, so that there is a link to measure."""
        return {source, dest} <= self._commands.keys()

    def send(self, source: str, dest: str, num_bytes: int) -> LinkSeen:
        """Measure a directed link by so many bytes, 0 bytes/s where nothing came."""
        result: dict[str, float] = {}
        with suppress(OSError, ValueError):  # an agent that is gone: nothing comes through, and the next is new
            sender, receiver = self._agent(source), self._agent(dest)
            result = json.loads(_result(sender, f"{receiver.host} {receiver.port} {num_bytes}\n"))
        rate = result.get("bandwidth_bytes_per_s", 0.0)
        return LinkSeen(source, dest, self._clock(), rate, result.get("latency_s"))

    def _agent(self, domain: str) -> _Agent:
        agent = self._agents.get(domain)
        if agent is None or agent.process.poll() is not None:
            command = self._commands[domain]
            process = subprocess.Popen(
                command.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=command.environment,
            )  # fmt: skip
            timer = threading.Timer(_BEGIN_S, process.kill)  # a job that waits for ever
            timer.start()
            try:
                host, port = _pipe(process.stdout).readline().split()
            finally:
                timer.cancel()
            self._agents[domain] = agent = _Agent(process, command.address or host, int(port))
        return agent


def _start(entry: DriverEntry, with_jobs: bool) -> _Command | None:
    """Return how an agent is started in a domain; None where it has no network of its own."""
    agent = (sys.executable, "-m", "strata.control.probe_agent")
    match entry:
        case LocalEntry(namespace=str(namespace)):
            return _Command(("ip", "netns", "exec", namespace, *agent), entry.address, None)
        case SlurmEntry() if with_jobs:
            where = [f"--partition={entry.partition}"] if entry.partition else []
            job = ("srun", "--quiet", "--ntasks=1", "--job-name=strata-probe", *where, *entry.options, *agent)
            conf = Path(entry.conf) if entry.conf else None
            return _Command(job, entry.address, SlurmCluster(conf).environment())
    return None


def _result(agent: _Agent, line: str) -> str:
    """Return what an agent makes of a line; one that is late is killed, which ends the wait."""
    timer = threading.Timer(_LATE_S, agent.process.kill)
    timer.start()
    try:
        _pipe(agent.process.stdin).write(line)
        _pipe(agent.process.stdin).flush()
        return _pipe(agent.process.stdout).readline()
    finally:
        timer.cancel()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
