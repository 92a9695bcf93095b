"""What a policy asks of a machine: CPUs for all minima, nodes and caches that exist, what its kernel can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata.host.machine.cpus import Cpus
from strata.host.machine.kernel import Kernel
from strata.host.policy.lint.finding import LintFinding, Place, finding_at
from strata.host.policy.policy import Confined, Open, Sized

SQUEEZED: Final = 4
"""Everything else needs a CPU in so many, or daemons and the kernel's own threads queue behind each other."""
MAX_CPUS: Final = 512
"""What scx_layered is compiled for."""


@dataclass(frozen=True, slots=True)
class TargetMachine:
    """The machine a policy is for."""

    cpus: Cpus
    kernel: Kernel


def room(layers: Sequence[Place], site: TargetMachine | None) -> Iterator[LintFinding]:
    """Yield where layers ask for more than there is; without a site, for more than any machine has."""
    yield from _cpus(layers, len(site.cpus.numbers) if site else None)
    yield from _protection(layers)
    spread = [at for at in layers if at.layer.kind.growth_algo.startswith("NodeSpread")]
    for at in spread:
        if any(match.kind == "NumaNode" for _, match in at.conditions()):
            yield finding_at("numa-node-spread", at.key("growth_algo"), algo=at.layer.kind.growth_algo)
    if site is not None:
        yield from _places(layers, site.cpus)
        yield from _abilities(layers, site)


def _cpus(layers: Sequence[Place], num_cpus: int | None) -> Iterator[LintFinding]:
    sized = [(at, at.layer.kind) for at in layers if isinstance(at.layer.kind, Sized)]
    total = num_cpus or MAX_CPUS
    least = {at.index: _limits(kind, total)[0] for at, kind in sized}
    # A share says as much about any machine as about this one; a number says something about this one only.
    where = f"{total} CPUs" if num_cpus else f"any machine (at most {MAX_CPUS} CPUs)"
    minimum, worst = sum(least.values()), max(least, key=lambda index: least[index], default=0)
    if minimum > total:
        yield finding_at("cpus-minima-exceed", f"[{worst}]", asked=minimum, where=where)
    last = layers[-1] if layers else None
    if last is not None and isinstance(last.layer.kind, Confined) and last.layer.matches == ((),):
        most = _limits(last.layer.kind, total)[1]
        if most * SQUEEZED < total:
            yield finding_at("rest-squeezed", last.path, name=last.layer.name, most=most, where=where)
    kept = [(at, *_limits(kind, total)) for at, kind in sized if kind.protected]
    if not kept:
        return
    if sum(fewest for _, fewest, _ in kept) >= total:
        yield finding_at("protected-leaves-none", kept[-1][0].key("protected"), where=where)
    elif num_cpus is not None and sum(most for _, _, most in kept) >= total:
        yield finding_at("protected-can-take-all", kept[-1][0].key("protected"), where=where)


def _limits(kind: Any, num_cpus: int) -> tuple[int, int]:
    """Return the fewest and most CPUs of a layer, rounded as scx_layered does."""
    if kind.cpus_range is not None:
        return kind.cpus_range[0], min(kind.cpus_range[1], num_cpus)
    if kind.cpus_range_frac is not None:
        fewest, most = (max(1, round(num_cpus * min(1.0, max(0.0, share)))) for share in kind.cpus_range_frac)
        return fewest, min(most, num_cpus)
    return 0, num_cpus


def _protection(layers: Sequence[Place]) -> Iterator[LintFinding]:
    keeps = [at.layer.name for at in layers if isinstance(at.layer.kind, Sized) and at.layer.kind.protected]
    for at in layers:
        if keeps and isinstance(at.layer.kind, Open) and at.layer.kind.preempt:
            yield finding_at("open-preempt-protected", at.key("preempt"), protected=", ".join(keeps))


def _places(layers: Sequence[Place], cpus: Cpus) -> Iterator[LintFinding]:
    if cpus.numbers != tuple(range(len(cpus.numbers))):
        yield finding_at("cpu-ids-have-holes", "", what="CPU")
    if tuple(cpus.nodes) != tuple(range(len(cpus.nodes))):
        yield finding_at("cpu-ids-have-holes", "", what="NUMA node")
    is_flat = len(cpus.nodes) == 1 and len(cpus.llcs) == 1
    for at in layers:
        for key, there in (("nodes", cpus.nodes), ("llcs", cpus.llcs)):
            wanted: tuple[int, ...] = getattr(at.layer.kind, key)
            if wanted and is_flat:
                yield finding_at("topology-ignored", at.key(key), what=key)
                continue
            bad = sorted({number for number in wanted if number not in there or wanted.count(number) > 1})
            if bad:
                has = ", ".join(map(str, there))
                yield finding_at("place-absent", at.key(key), what=f"{key} {bad}", has=has)
        for path, match in at.conditions():
            if match.kind != "NumaNode":
                continue
            if match.value >= len(cpus.nodes):
                yield finding_at(
                    "place-absent", path, what=f"node {match.value}", has=", ".join(map(str, cpus.nodes))
                )
            elif len(cpus.nodes) == 1:
                yield finding_at("topology-ignored", path, what="NumaNode")


def _abilities(layers: Sequence[Place], site: TargetMachine) -> Iterator[LintFinding]:
    governors = {cpu.governor for cpu in site.cpus.all}
    for at in layers:
        kind = at.layer.kind
        if kind.perf and governors != {"schedutil"}:
            yield finding_at(
                "perf-no-schedutil", at.key("perf"), governor=", ".join(sorted(governors - {""})) or "none"
            )
        if kind.exclusive and not site.cpus.has_smt:
            yield finding_at("exclusive-no-smt", at.key("exclusive"))
        if isinstance(kind, Sized) and kind.membw_gb is not None and not site.kernel.has_bandwidth_monitor:
            yield finding_at("membw-no-monitor", at.key("membw_gb"))
