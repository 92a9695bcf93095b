"""One layer's fields: keys that are dropped or not read, ranges, and values that do not do what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from strata.host.policy.codec import LAYER_KEYS, TYPES, UnknownKey
from strata.host.policy.lint.finding import LintFinding, Place, finding_at
from strata.host.policy.policy import MAX_NAME, MAX_PERF, MAX_WEIGHT, Grouped, LayerKind, Open, Sized
from strata.names import closest

LONG_SLICE_US: Final = 1_000_000
"""No policy of the field has a slice of a second; the kernel ejects a scheduler that lets a task wait 30 s."""
SHORT_SLICE_US: Final = 100
"""Below this switching costs a share of the slice that shows (assumed)."""
PERCENT_FROM: Final = 2.0
"""A layer that shrinks until its CPUs are this busy is not meant; 40 is 40 %, not 4000 %."""
TEMPLATE_BYTES: Final = 64
"""What a template adds to a layer's name: the end of its cgroup's path."""
_ANYWHERE: Final = set().union(*TYPES.values())


def keys(layers: Sequence[Place]) -> Iterator[LintFinding]:
    """Yield what is wrong with layers' fields, each by itself."""
    for at in layers:
        for key in ("idle_smt", "allow_node_aligned"):
            if getattr(at.layer.kind, key) is not None:
                yield finding_at("key-deprecated", at.key(key), key=key)
        size = len(at.layer.name.encode())
        room = MAX_NAME - (TEMPLATE_BYTES if at.layer.template is not None else 0)
        if size >= room or "\0" in at.layer.name:
            yield finding_at("layer-name-panics", f"{at.path}.name", size=size, limit=room - 1)
        kind = at.layer.kind
        if isinstance(kind, Sized):
            yield from _ranges(at, kind)
        elif kind.util_peak_half_life_ms:
            yield finding_at("util-range-wrong", at.key("util_peak_half_life_ms"), why="it needs a util_range")
        yield from _values(at, kind)
        yield from _preemption(at, kind)
    # Once: nothing can be done about any of them.
    early = next((at for at in layers if isinstance(at.layer.kind, Open) and not at.layer.kind.preempt), None)
    if early is not None:
        yield finding_at("open-limits-early", early.path, name=early.layer.name)


def dropped(unknown: Sequence[UnknownKey]) -> Iterator[LintFinding]:
    """Yield what is wrong with keys that scx_layered drops."""
    for misplaced in unknown:
        if not misplaced.kind:
            where = "kind" if misplaced.key in _ANYWHERE else ""
            yield from _dropped(misplaced.path, misplaced.key, LAYER_KEYS, where=where)
            continue
        others = [kind for kind, known in TYPES.items() if misplaced.key in known]
        where = " and ".join(others) if others else "the layer itself" if misplaced.key in LAYER_KEYS else ""
        yield from _dropped(misplaced.path, misplaced.key, sorted(TYPES[misplaced.kind]), where=where)


def _dropped(path: str, key: str, known: Sequence[str], *, where: str) -> Iterator[LintFinding]:
    if where:
        yield finding_at("key-ignored", path, key=key, where=where)
        return
    close = closest(key, known)
    suggestion = f"; did you mean {close}?" if close else ""
    yield finding_at("key-unknown", path, key=key, meant=suggestion)


def _ranges(at: Place, kind: Any) -> Iterator[LintFinding]:
    low, high = kind.util_range
    if low < 0 or low >= high:
        yield finding_at(
            "util-range-wrong", at.key("util_range"), why=f"[{low:g}, {high:g}] is not 0 <= low < high"
        )
    elif low >= PERCENT_FROM:
        yield finding_at("util-range-percent", at.key("util_range"), low=f"{low:g}", high=f"{high:g}")
    elif high > 1 and not getattr(kind, "util_includes_open_cputime", False):
        yield finding_at("util-range-unreached", at.key("util_range"), high=f"{high:g}")
    if kind.cpus_range is not None and kind.cpus_range_frac is not None:
        yield finding_at("cpus-range-wrong", at.key("cpus_range_frac"), why="cpus_range is given too; take one")
    if kind.cpus_range is not None:
        fewest, most = kind.cpus_range
        if fewest > most:
            why = f"the least, {fewest}, is above the most, {most}"
            yield finding_at("cpus-range-wrong", at.key("cpus_range"), why=why)
        elif most == 0 and not isinstance(kind, Grouped):
            yield finding_at("cpus-range-wrong", at.key("cpus_range"), why="a Confined layer needs a CPU")
        elif most == 0:
            yield finding_at("layer-no-cpus", at.key("cpus_range"), name=at.layer.name)
    if kind.cpus_range_frac is not None and not all(0 <= share <= 1 for share in kind.cpus_range_frac):
        yield finding_at("cpus-range-wrong", at.key("cpus_range_frac"), why="shares go from 0 to 1")
    elif kind.cpus_range_frac is not None and kind.cpus_range_frac[0] > kind.cpus_range_frac[1]:
        yield finding_at("cpus-range-wrong", at.key("cpus_range_frac"), why="the least is above the most")

    if kind.membw_gb is not None and kind.membw_gb <= 0:
        yield finding_at("membw-no-cap", at.key("membw_gb"), value=f"{kind.membw_gb:g}")


def _values(at: Place, kind: LayerKind) -> Iterator[LintFinding]:
    if kind.perf > MAX_PERF:
        yield finding_at("perf-too-high", at.key("perf"), perf=kind.perf, limit=MAX_PERF)
    if kind.weight > MAX_WEIGHT:
        yield finding_at("weight-clamped", at.key("weight"), weight=kind.weight, limit=MAX_WEIGHT)
    if not 0.0 <= kind.yield_ignore <= 1.0:
        does = "gives up the whole slice" if kind.yield_ignore < 0 else "is ignored"
        yield finding_at("yield-ignore-range", at.key("yield_ignore"), value=f"{kind.yield_ignore:g}", does=does)
    if kind.slice_us > LONG_SLICE_US:
        yield finding_at("slice-too-long", at.key("slice_us"), seconds=f"{kind.slice_us / 1e6:g}")
    if 0 < kind.slice_us < SHORT_SLICE_US:
        yield finding_at("slice-too-short", at.key("slice_us"), us=kind.slice_us)
    if kind.min_exec_us > LONG_SLICE_US:
        yield finding_at("charge-too-long", at.key("min_exec_us"), seconds=f"{kind.min_exec_us / 1e6:g}")
    for key in ("xnuma_threshold", "xnuma_threshold_delta"):
        low, high = getattr(kind, key)
        if low > high:
            yield finding_at("xnuma-inverted", at.key(key), low=f"{low:g}", high=f"{high:g}")


def _preemption(at: Place, kind: LayerKind) -> Iterator[LintFinding]:
    if kind.preempt:
        for key in ("disallow_open_after_us", "disallow_preempt_after_us"):
            if getattr(kind, key) is not None:
                yield finding_at("preempt-unlimited", at.key(key), key=key)
    elif kind.preempt_first:
        yield finding_at("preempt-first-alone", at.key("preempt_first"))
