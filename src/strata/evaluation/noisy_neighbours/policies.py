"""What may be done against noisy neighbours, one way at a time: steps as `strata host apply` takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from strata.host.machine.cpus import Cpus, show
from strata.host.machine.kernel import Kernel
from strata.host.policy.plain import NICE, plain
from strata.host.policy.step import Step
from strata.host.threads.classify import Classified
from strata.host.threads.pools import LayerName
from strata.host.threads.snapshot import Thread

REAL_TIME: Final = "FIFO 10"
WEIGHT: Final = "10000"
"""The most cpu.weight there is: a hundred times the usual."""
OLD_S: Final = 60.0
"""How old the noise is said to be: layers leave alone what has just started."""


@dataclass(frozen=True, slots=True)
class NoiseScenario:
    """A trainer and its noise on some CPUs (numbers), and what the machine and its kernel offer."""

    on: tuple[int, ...]
    trainer: Thread
    noise: tuple[Thread, ...]
    cpus: Cpus
    kernel: Kernel


class PolicyMissing(Exception):
    """A policy that this machine does not have; says why."""


def nothing(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield no step."""
    yield from ()


def nice(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield nine times the weight for the trainer."""
    yield _step("nice", scenario.trainer, str(NICE["critical"]), "critical")


def batch(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield noise that never preempts at a wakeup."""
    for thread in scenario.noise:
        yield _step("scheduler", thread, "BATCH 0", "rest")


def real_time(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield a trainer that preempts every fair thread."""
    yield _step("scheduler", scenario.trainer, REAL_TIME, "critical")


def apart(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield the last CPU for the trainer, the others for the noise, by affinity."""
    own, others = _halves(scenario)
    yield _step("affinity", scenario.trainer, show(own), "critical")
    for thread in scenario.noise:
        yield _step("affinity", thread, show(others), "rest")


def unpinned(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield noise that may run on every CPU."""
    for thread in scenario.noise:
        yield _step("affinity", thread, show(scenario.on), "rest")


def weight(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield a cgroup of the greatest weight for the trainer."""
    yield from _grouped(scenario, {"critical": ("cpu.weight", WEIGHT), "rest": ("cpu.weight", "100")})


def idle(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield a cgroup for the noise that runs when nobody else wants to."""
    yield from _grouped(scenario, {"critical": ("cpu.weight", "100"), "rest": ("cpu.idle", "1")})


def cpuset(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield cgroups of which the trainer's has the last CPU to itself."""
    own, others = _halves(scenario)
    yield from _grouped(scenario, {"critical": ("cpuset.cpus", show(own)), "rest": ("cpuset.cpus", show(others))})


def layers(scenario: NoiseScenario) -> Iterator[Step]:
    """Yield what `strata host layers --plain` writes for these threads; interrupts stay where they are."""
    noise = (replace(thread, age_s=OLD_S, run_s=OLD_S) for thread in scenario.noise)
    threads = [
        Classified(scenario.trainer, "kernel-launch", "critical", 1.0, ("the benchmark's trainer",)),
        *(Classified(thread, None, "rest", 1.0, ("the benchmark's noise",)) for thread in noise),
    ]
    yield from plain(scenario.cpus, replace(scenario.kernel, irqs={}), threads).steps


POLICIES: Final[Mapping[str, Callable[[NoiseScenario], Iterator[Step]]]] = {
    "quiet": nothing,
    "quiet again": nothing,
    "eevdf": nothing,
    "eevdf again": nothing,
    "nice": nice,
    "batch": batch,
    "fifo": real_time,
    "affinity": apart,
    "weight": weight,
    "idle": idle,
    "cpuset": cpuset,
    "layers": layers,
}
"""By name; the first two run without noise, and what is said to be `again` tells how far equal runs differ."""
QUIET: Final = ("quiet", "quiet again")


def _step(act: str, thread: Thread, value: str, layer: LayerName) -> Step:
    path = f"/proc/{thread.pid}/task/{thread.tid}"
    return Step(act, path, value, "the benchmark's", layer, thread.start_ticks)  # type: ignore[arg-type]


def _halves(scenario: NoiseScenario) -> tuple[Sequence[int], Sequence[int]]:
    if len(scenario.on) < 2:
        raise PolicyMissing("one CPU cannot be split")
    return scenario.on[-1:], scenario.on[:-1]


def _grouped(scenario: NoiseScenario, settings: Mapping[LayerName, tuple[str, str]]) -> Iterator[Step]:
    """Yield threaded cgroups for the trainer and for the noise, below the one they are in, as layers have them."""
    kernel = scenario.kernel
    if not kernel.cgroup_root:
        raise PolicyMissing("cgroup v2 is not mounted")
    if needed := [name for name in ("cpu", "cpuset") if name not in kernel.controllers]:
        raise PolicyMissing(f"cgroup v2 has no controller {' and '.join(needed)} here")
    above = scenario.trainer.cgroup.split("/")[1:]
    base = "/".join([kernel.cgroup_root, *above])
    why = "the benchmark's"
    for depth in range(len(above)):
        folder = "/".join([kernel.cgroup_root, *above[:depth]])
        yield Step("write", f"{folder}/cgroup.subtree_control", "+cpu +cpuset", why, "critical")
    for layer in settings:
        yield Step("mkdir", f"{base}/strata-{layer}", "", why, layer)
        yield Step("write", f"{base}/strata-{layer}/cgroup.type", "threaded", why, layer)
    yield Step("write", f"{base}/cgroup.subtree_control", "+cpu +cpuset", why, "critical")
    for layer, (file, value) in settings.items():
        yield Step("write", f"{base}/strata-{layer}/{file}", value, why, layer)
        for thread in [scenario.trainer] if layer == "critical" else scenario.noise:
            path = f"{base}/strata-{layer}/cgroup.threads"
            yield Step("attach", path, str(thread.tid), why, layer, thread.start_ticks)
