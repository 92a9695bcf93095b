"""A policy of scx_layered: layers in order, each with what it matches and how its threads are run.

Every field of its JSON, under its own name and with its default. The first layer that matches takes a thread.

References
----------
sched-ext/scx 7a58a3a1 (scx_layered 1.1.2), scheds/rust/scx_layered/src/config.rs and src/bpf/intf.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import Field

MAX_LAYERS: Final = 16
MAX_ORS: Final = 32
MAX_ANDS: Final = 26
MAX_CGROUP_REGEXES: Final = 16
MAX_PATH: Final = 4096
MAX_COMM: Final = 16
MAX_NAME: Final = 128
MAX_WEIGHT: Final = 10_000
MAX_PERF: Final = 1024
"""SCX_CPUPERF_ONE; the kernel ejects a scheduler that asks for more."""
JOIN_BYTES: Final = 13
"""Room for the name in a CmdJoin command, its end included."""

U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
"""Integers of Rust."""

MATCHERS: Final[Mapping[str, Any]] = {
    "CgroupPrefix": str,
    "CgroupSuffix": str,
    "CgroupContains": str,
    "CgroupRegex": str,
    "CommPrefix": str,
    "CommPrefixExclude": str,
    "PcommPrefix": str,
    "PcommPrefixExclude": str,
    "NiceAbove": I32,
    "NiceBelow": I32,
    "NiceEquals": I32,
    "UIDEquals": U32,
    "GIDEquals": U32,
    "PIDEquals": U32,
    "PPIDEquals": U32,
    "TGIDEquals": U32,
    "NSPIDEquals": tuple[U64, U32],
    "NSEquals": U32,
    "CmdJoin": str,
    "IsGroupLeader": bool,
    "IsKthread": bool,
    "UsedGpuTid": bool,
    "UsedGpuPid": bool,
    "AvgRuntime": tuple[U64, U64],
    "HintEquals": U64,
    "SystemCpuUtilBelow": float,
    "DsqInsertBelow": float,
    "NumaNode": U32,
}
"""Each matcher and the value it takes."""

GrowthAlgorithm = Literal[
    "Sticky", "Linear", "Reverse", "Random", "Topo", "RoundRobin", "BigLittle", "LittleBig", "NodeSpread",
    "NodeSpreadReverse", "NodeSpreadRandom", "CpuSetSpread", "CpuSetSpreadReverse", "CpuSetSpreadRandom",
    "RandomTopo", "StickyDynamic",
]  # fmt: skip
Placement = Literal["Standard", "Sticky", "Floating"]


@dataclass(frozen=True, slots=True)
class Match:
    """One condition on a thread: a key of `MATCHERS` and its value (a list of two is a tuple here)."""

    kind: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What a layer of any kind may say. `unknown`: keys scx_layered drops, kept as they were read."""

    min_exec_us: U64 = 0
    yield_ignore: float = 0.0
    slice_us: U64 = 0
    fifo: bool = False
    preempt: bool = False
    preempt_first: bool = False
    exclusive: bool = False
    allow_node_aligned: bool | None = None
    skip_remote_node: bool = False
    prev_over_idle_core: bool = False
    weight: U32 = 0
    disallow_open_after_us: U64 | None = None
    disallow_preempt_after_us: U64 | None = None
    xllc_mig_min_us: float = 0.0
    idle_smt: bool | None = None
    growth_algo: GrowthAlgorithm = "Sticky"
    util_peak_half_life_ms: U64 = 0
    perf: U64 = 0
    idle_resume_us: U32 | None = None
    nodes: tuple[U64, ...] = ()
    llcs: tuple[U64, ...] = ()
    placement: Placement = "Standard"
    member_expire_ms: U64 = 0
    xnuma_threshold: tuple[float, float] = (0.6, 0.7)
    xnuma_threshold_delta: tuple[float, float] = (0.2, 0.3)
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized(Common):
    """What a layer that owns CPUs may say; `util_range` it must. `membw_gb` is in GiB/s."""

    util_range: tuple[float, float]
    cpus_range: tuple[U64, U64] | None = None
    cpus_range_frac: tuple[float, float] | None = None
    membw_gb: float | None = None
    protected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Confined(Sized):
    """Its threads run on the layer's own CPUs only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped(Sized):
    """Its threads prefer the layer's own CPUs, and take idle ones outside."""

    util_includes_open_cputime: bool = False
    idle_confined: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Common):
    """Its threads prefer CPUs that no layer owns."""


LayerKind = Confined | Grouped | Open
KINDS: Final[Mapping[str, type[LayerKind]]] = {"Confined": Confined, "Grouped": Grouped, "Open": Open}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. `matches`: any of these blocks, each of which holds where all its conditions hold."""

    name: str
    matches: tuple[tuple[Match, ...], ...]
    kind: LayerKind
    comment: str | None = None
    template: Match | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


def arguments(layers: Sequence[Layer], *, num_nodes: int) -> tuple[str, ...]:
    """Return the arguments a policy needs before `f:FILE`, on a machine of so many NUMA nodes.

    Without them a policy that asks who used a GPU ends the scheduler. Hints also need --task-hint-map PATH, where
    those who write hints look for it, which the policy does not say.
    """
    kinds = {match.kind for layer in layers for block in layer.matches for match in block}
    if not kinds & {"UsedGpuTid", "UsedGpuPid"}:
        return ()
    return ("--enable-gpu-support", "--enable-gpu-affinitize") if num_nodes > 1 else ("--enable-gpu-support",)
