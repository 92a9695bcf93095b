"""Policies of scx_layered that are wrong: each with the token and the path that must be told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from strata.host.machine.cpus import Cpu, Cpus
from strata.host.machine.kernel import Kernel
from strata.host.policy.lint.room import TargetMachine
from tests.host.machine.cpus import simple

EIGHT = TargetMachine(simple(8, nodes=2, smt=True), Kernel(has_bandwidth_monitor=True))
FLAT = TargetMachine(simple(8), Kernel(has_bandwidth_monitor=True))
SCHEDUTIL = TargetMachine(Cpus(tuple(replace(cpu, governor="schedutil") for cpu in EIGHT.cpus.all)), Kernel())
HOLES = TargetMachine(Cpus((Cpu(0), Cpu(2), Cpu(3))), Kernel())

REST = {"name": "rest", "matches": [[]], "kind": {"Grouped": {"util_range": [0.1, 0.6]}}}
OPEN = {"name": "rest", "matches": [[]], "kind": {"Open": {}}}
PYTHON = [[{"CommPrefix": "python"}]]


@dataclass(frozen=True)
class Wrong:
    """A policy, and what must be found in it on `site` (None: on any machine)."""

    name: str
    token: str
    path: str
    policy: Any
    site: TargetMachine | None = None


def layer(matches: Any = None, kind: Any = None, /, name: str = "first", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "matches": PYTHON if matches is None else matches,
        "kind": {"Grouped": {"util_range": [0.4, 0.8]}} if kind is None else kind,
        **more,
    }


def grouped(**more: Any) -> dict[str, Any]:
    return {"Grouped": {"util_range": [0.4, 0.8], **more}}


def confined(**more: Any) -> dict[str, Any]:
    return {"Confined": {"util_range": [0.4, 0.8], **more}}


def match(kind: str, value: Any) -> list[list[dict[str, Any]]]:
    return [[{kind: value}]]


def on_match(name: str, token: str, kind: str, value: Any) -> Wrong:
    return Wrong(name, token, f"[0].matches[0][0].{kind}", [layer(match(kind, value)), REST])


def block(name: str, token: str, *conditions: dict[str, Any]) -> Wrong:
    return Wrong(name, token, "[0].matches[0]", [layer([list(conditions)]), REST])


def on_key(name: str, token: str, key: str, kind: dict[str, Any], site: TargetMachine | None = None) -> Wrong:
    return Wrong(name, token, f"[0].kind.{next(iter(kind))}.{key}", [layer(None, kind), REST], site)


GPU = {"UsedGpuPid": True}
COMM = {"CommPrefix": "pt_"}

WRONG = (
    # What scx_layered cannot read.
    Wrong("an object, not a list", "policy-unreadable", "", {"layers": [REST]}),
    Wrong("a layer that is text", "policy-unreadable", "[0]", ["rest"]),
    Wrong("no name", "policy-unreadable", "[0].name", [{"matches": [[]], "kind": {"Open": {}}}]),
    Wrong("no matches", "policy-unreadable", "[0].matches", [{"name": "rest", "kind": {"Open": {}}}]),
    Wrong("no kind", "policy-unreadable", "[0].kind", [{"name": "rest", "matches": [[]]}]),
    Wrong("kind as text", "policy-unreadable", "[0].kind", [layer([[]], "Open")]),
    Wrong("two kinds", "policy-unreadable", "[0].kind", [layer([[]], {"Open": {}, "Confined": {}})]),
    Wrong("a kind that is none", "policy-unreadable", "[0].kind.Closed", [layer([[]], {"Closed": {}})]),
    Wrong("no util_range", "policy-unreadable", "[0].kind.Grouped.util_range", [layer([[]], {"Grouped": {}})]),
    Wrong("one level of lists", "policy-unreadable", "[0].matches[0]", [layer([COMM]), REST]),
    Wrong("a condition of two keys", "policy-unreadable", "[0].matches[0][0]", [layer([[{**COMM, **GPU}]]), REST]),
    on_match("the seed's UserIDEquals", "policy-unreadable", "UserIDEquals", 1000),
    on_match("a name as number", "policy-unreadable", "CommPrefix", 7),
    on_match("leadership as text", "policy-unreadable", "IsGroupLeader", "yes"),
    on_match("a negative thread", "policy-unreadable", "PIDEquals", -1),
    on_match("one end of a range", "policy-unreadable", "AvgRuntime", [100]),
    on_key("a weight of one half", "policy-unreadable", "weight", grouped(weight=0.5)),
    on_key("a growth in lower case", "policy-unreadable", "growth_algo", grouped(growth_algo="sticky")),
    on_key("three CPUs in a range", "policy-unreadable", "cpus_range", grouped(cpus_range=[1, 2, 3])),
    on_key("preempt as text", "policy-unreadable", "preempt", grouped(preempt="true")),
    # What it refuses.
    Wrong("no layer", "policy-size", "", []),
    Wrong(
        "seventeen layers",
        "policy-size",
        "",
        [*(layer(match("CommPrefix", f"t{n:02}"), name=f"l{n}") for n in range(16)), REST],
    ),
    Wrong("no last layer for all", "catch-all-missing", "[0].matches", [layer()]),
    Wrong("a last layer for none", "catch-all-missing", "[0].matches", [layer([])]),
    Wrong("a layer for none", "matches-empty", "[0].matches", [layer([]), REST]),
    Wrong(
        "33 blocks",
        "matches-too-many",
        "[0].matches",
        [layer([[{"CommPrefix": f"t{number:02}"}] for number in range(33)]), REST],
    ),
    block("27 conditions", "matches-too-many", *({"CommPrefixExclude": f"t{number:02}"} for number in range(27))),
    Wrong(
        "17 regular expressions",
        "matches-too-many",
        "[0].matches[16][0].CgroupRegex",
        [layer([[{"CgroupRegex": f"job-{number:02}$"}] for number in range(17)]), REST],
    ),
    on_match("a name of 17 bytes", "match-text-too-long", "CommPrefix", "a" * 17),
    on_match("a process of 20 bytes", "match-text-too-long", "PcommPrefix", "a" * 20),
    on_match("a path of 5000 bytes", "match-text-too-long", "CgroupContains", "a" * 5000),
    Wrong(
        "twice as busy as can be",
        "match-value-range",
        "[0].matches[0][1].SystemCpuUtilBelow",
        [layer([[{"HintEquals": 1}, {"SystemCpuUtilBelow": 2.0}]]), REST],
    ),
    on_match("hint 1025", "match-value-range", "HintEquals", 1025),
    block("two hints", "hint-misused", {"HintEquals": 1}, {"HintEquals": 2}),
    block("a hint and a name", "hint-misused", {"HintEquals": 1}, COMM),
    block("a busy machine without a hint", "hint-misused", {"SystemCpuUtilBelow": 0.5}),
    block("queueing twice", "hint-misused", {"HintEquals": 1}, {"DsqInsertBelow": 0.5}, {"DsqInsertBelow": 0.4}),
    Wrong(
        "a hint in two layers",
        "hint-misused",
        "[1].matches[0]",
        [layer(match("HintEquals", 1)), layer(match("HintEquals", 1), name="second"), REST],
    ),
    on_key("least above most", "cpus-range-wrong", "cpus_range", grouped(cpus_range=[4, 2])),
    on_key("confined to no CPU", "cpus-range-wrong", "cpus_range", confined(cpus_range=[0, 0])),
    on_key("percents", "cpus-range-wrong", "cpus_range_frac", grouped(cpus_range_frac=[25, 50])),
    on_key("least share above most", "cpus-range-wrong", "cpus_range_frac", confined(cpus_range_frac=[0.5, 0.25])),
    on_key(
        "both ways to count",
        "cpus-range-wrong",
        "cpus_range_frac",
        grouped(cpus_range=[1, 2], cpus_range_frac=[0.1, 0.2]),
    ),
    on_key("busy the wrong way round", "util-range-wrong", "util_range", grouped(util_range=[0.9, 0.8])),
    on_key("less busy than idle", "util-range-wrong", "util_range", confined(util_range=[-0.1, 0.8])),
    Wrong(
        "peaks of an Open layer",
        "util-range-wrong",
        "[0].kind.Open.util_peak_half_life_ms",
        [layer([[]], {"Open": {"util_peak_half_life_ms": 500}})],
    ),
    on_match("half a bracket", "regex-wrong", "CgroupRegex", "job-["),
    on_match("look-ahead", "regex-wrong", "CgroupRegex", "job-(?!test)"),
    on_match("bytes that are no text", "regex-wrong", "CgroupRegex", r"(?-u:\xff)"),
    on_match("a back reference", "regex-wrong", "CgroupRegex", r"(a|b)-\1"),
    Wrong(
        "a template by name",
        "template-unsupported",
        "[0].template.CommPrefix",
        [layer(template={"CommPrefix": "python"}), REST],
    ),
    Wrong(
        "a template for every cgroup",
        "template-misused",
        "[0].template.CgroupSuffix",
        [layer(template={"CgroupSuffix": ""}), REST],
    ),
    Wrong("a template at the end", "template-misused", "[0].template",
          [layer([[]], template={"CgroupSuffix": "job"})]),
    Wrong(
        "one node, spread over all",
        "numa-node-spread",
        "[0].kind.Grouped.growth_algo",
        [layer(match("NumaNode", 0), grouped(growth_algo="NodeSpread")), REST],
        EIGHT,
    ),
    on_key("a node that is not there", "place-absent", "nodes", grouped(nodes=[0, 2]), EIGHT),
    on_key("a node twice", "place-absent", "nodes", grouped(nodes=[1, 1]), EIGHT),
    on_key("a cache that is not there", "place-absent", "llcs", grouped(llcs=[7]), EIGHT),
    Wrong(
        "pinned to no node",
        "place-absent",
        "[0].matches[0][0].NumaNode",
        [layer(match("NumaNode", 2)), REST],
        EIGHT,
    ),
    Wrong("a CPU switched off", "cpu-ids-have-holes", "", [REST], HOLES),
    # What it takes without a word.
    on_key("preempt misspelt", "key-unknown", "preemt", grouped(preemt=True)),
    on_key("a key nobody knows", "key-unknown", "colour", grouped(colour="red")),
    Wrong("match for matches", "key-unknown", "[0].match", [layer(match=[[]]), REST]),
    Wrong("all too early", "catch-all-early", "[0].matches[0]", [layer([[]]), REST]),
    Wrong("all as second block", "catch-all-early", "[0].matches[1]", [layer([[COMM], []]), REST]),
    Wrong("an empty name", "catch-all-early", "[0].matches[0]", [layer(match("CommPrefix", "")), REST]),
    Wrong("anything but this, or anything but that", "catch-all-early", "[0].matches",
          [layer([[{"CommPrefixExclude": "pt_"}], [{"CommPrefixExclude": "sh"}]]), REST]),
    Wrong("nice on both sides and between", "catch-all-early", "[0].matches",
          [layer([[{"NiceBelow": 1}], [{"NiceAbove": 0}]]), REST]),
    Wrong("leaders and others", "catch-all-early", "[0].matches",
          [layer([[{"IsGroupLeader": True}], [{"IsGroupLeader": False}]]), REST]),
    Wrong("a name, or not that name", "catch-all-early", "[0].matches",
          [layer([[{"PcommPrefix": "py"}], [{"PcommPrefixExclude": "python"}]]), REST]),
    Wrong("every nice value", "catch-all-early", "[0].matches[0]", [layer(match("NiceAbove", -21)), REST]),
    Wrong(
        "the same matches twice, as cpus_pct.json",
        "layer-shadowed",
        "[1]",
        [layer(match("PcommPrefix", "stress-ng")), layer(match("PcommPrefix", "stress-ng"), name="two"), REST],
    ),
    Wrong(
        "the narrower name behind the wider",
        "layer-shadowed",
        "[1]",
        [layer(match("CommPrefix", "pt_")), layer(match("CommPrefix", "pt_data"), name="two"), REST],
    ),
    Wrong(
        "each block behind another's",
        "layer-shadowed",
        "[1]",
        [
            layer([[{"NiceBelow": 0}], [{"CgroupPrefix": "a/"}]]),
            layer([[{"NiceEquals": -5}], [{"CgroupPrefix": "a/b/"}, COMM]], name="two"),
            REST,
        ],
    ),
    Wrong(
        "more conditions behind fewer",
        "layer-shadowed",
        "[1]",
        [layer(match("UsedGpuPid", True)), layer([[{"UsedGpuTid": True}, COMM]], name="two"), REST],
    ),
    block("two names", "match-never", {"CommPrefix": "a"}, {"CommPrefix": "b"}),
    block("a name and not that name", "match-never", {"CommPrefix": "pt_data"}, {"CommPrefixExclude": "pt_"}),
    block("two processes", "match-never", {"TGIDEquals": 1}, {"TGIDEquals": 2}),
    block("two users", "match-never", {"UIDEquals": 0}, {"UIDEquals": 1000}),
    block("nicer than can be", "match-never", {"NiceAbove": 19}),
    block("nice both ways", "match-never", {"NiceAbove": 0}, {"NiceBelow": 1}),
    block("a run of no length", "match-never", {"AvgRuntime": [100, 100]}),
    block("a label of 13 bytes", "match-never", {"CmdJoin": "a" * 13}),
    block("no name at all", "match-never", {"CommPrefixExclude": ""}),
    block("leader and not", "match-never", {"IsGroupLeader": True}, {"IsGroupLeader": False}),
    on_match("a name of exactly 16 bytes", "match-text-panics", "CommPrefix", "a" * 16),
    on_match("a name left out, of 20 bytes", "match-text-panics", "CommPrefixExclude", "a" * 20),
    on_match("a process left out, of 16 bytes", "match-text-panics", "PcommPrefixExclude", "a" * 16),
    on_match("a label of 16 bytes", "match-text-panics", "CmdJoin", "a" * 16),
    on_match("a path of exactly 4096 bytes", "match-text-panics", "CgroupPrefix", "a" * 4095 + "/"),
    on_match("a zero byte", "match-text-panics", "CommPrefix", "pt\0"),
    on_match("eight letters of two bytes", "match-text-panics", "CommPrefix", "é" * 8),
    Wrong("a layer's name of 128 bytes", "layer-name-panics", "[0].name", [layer(name="a" * 128), REST]),
    Wrong("a layer's name with a zero byte", "layer-name-panics", "[0].name", [layer(name="a\0"), REST]),
    Wrong("a template's name of 64 bytes", "layer-name-panics", "[0].name",
          [layer(name="a" * 64, template={"CgroupSuffix": "job"}), REST]),
    on_match("a path with its slash", "cgroup-path-form", "CgroupPrefix", "/system.slice/"),
    on_match("an expression of a path without its root", "cgroup-path-form", "CgroupRegex", "^system.slice"),
    on_match("an expression with a slash at the end", "cgroup-path-form", "CgroupRegex", r"job-\d+/$"),
    on_match("a suffix without its slash", "cgroup-path-form", "CgroupSuffix", "job.scope"),
    Wrong(
        "a template with a slash, as template.json",
        "template-idle",
        "[0].template.CgroupSuffix",
        [layer(template={"CgroupSuffix": "job/"}), REST],
    ),
    on_key("percents of a CPU", "util-range-percent", "util_range", confined(util_range=[40, 85])),
    on_key("percents of more than a CPU", "util-range-percent", "util_range",
           grouped(util_range=[40, 85], util_includes_open_cputime=True)),
    on_match("no kernel threads", "kthread-inverted", "IsKthread", False),
    on_key("twice the top speed", "perf-too-high", "perf", grouped(perf=2048)),
    on_key("percents of speed", "key-unknown", "perf_pct", grouped(perf_pct=100)),
    Wrong(
        "nine of eight CPUs",
        "cpus-minima-exceed",
        "[1]",
        [
            layer(None, grouped(cpus_range=[4, 8])),
            layer(match("CommPrefix", "b"), confined(cpus_range=[5, 8]), name="two"),
            REST,
        ],
        EIGHT,
    ),
    Wrong(
        "more than all, in shares",
        "cpus-minima-exceed",
        "[1]",
        [
            layer(None, grouped(cpus_range_frac=[0.5, 1])),
            layer(match("CommPrefix", "b"), confined(cpus_range_frac=[0.75, 1]), name="two"),
            REST,
        ],
    ),
    on_key("all kept at least", "protected-leaves-none", "protected",
           confined(cpus_range=[8, 8], protected=True), EIGHT),
    on_key("all kept, as a share", "protected-leaves-none", "protected",
           grouped(cpus_range_frac=[1, 1], protected=True)),
    # What it takes and does not do.
    Wrong(
        "util_range in an Open layer, as cpuset.json",
        "key-ignored",
        "[0].kind.Open.util_range",
        [layer([[]], {"Open": {"util_range": [0.8, 0.9]}})],
    ),
    on_key("idle_confined in a Confined layer", "key-ignored", "idle_confined", confined(idle_confined=True)),
    Wrong("a weight beside the kind", "key-ignored", "[0].weight", [layer(weight=200), REST]),
    on_key("matches inside the kind", "key-ignored", "matches", grouped(matches=[[]])),
    on_key("idle_smt", "key-deprecated", "idle_smt", grouped(idle_smt=True)),
    on_key("allow_node_aligned", "key-deprecated", "allow_node_aligned", grouped(allow_node_aligned=False)),
    Wrong(
        "one block of two behind another's",
        "match-shadowed",
        "[1].matches[1]",
        [layer([[COMM]]), layer([[{"CommPrefix": "x"}], [{"CommPrefix": "pt_a"}]], name="two"), REST],
    ),
    on_key("kept without a limit", "protected-can-take-all", "protected", grouped(protected=True), EIGHT),
    Wrong(
        "preempting what is kept",
        "open-preempt-protected",
        "[1].kind.Open.preempt",
        [
            layer(None, confined(protected=True, cpus_range=[1, 2])),
            {"name": "rest", "matches": [[]], "kind": {"Open": {"preempt": True}}},
        ],
    ),
    on_key("a node where there is one", "topology-ignored", "nodes", grouped(nodes=[0]), FLAT),
    on_key("a cache where there is one", "topology-ignored", "llcs", grouped(llcs=[0]), FLAT),
    Wrong(
        "pinned where there is one",
        "topology-ignored",
        "[0].matches[0][0].NumaNode",
        [layer(match("NumaNode", 0)), REST],
        FLAT,
    ),
    block("all threads of a GPU process", "gpu-catches-loaders", GPU),
    block("all threads of that cgroup's GPU processes", "gpu-catches-loaders", GPU, {"CgroupPrefix": "job/"}),
    block("GPU without the flag", "gpu-needs-flag", {"UsedGpuTid": True}, {"IsGroupLeader": True}),
    on_key("speed without schedutil", "perf-no-schedutil", "perf", grouped(perf=1024), EIGHT),
    on_key("exclusive without SMT", "exclusive-no-smt", "exclusive", grouped(exclusive=True), FLAT),
    on_key("bandwidth nobody counts", "membw-no-monitor", "membw_gb", grouped(membw_gb=25), SCHEDUTIL),
    on_key("a bandwidth of nothing", "membw-no-cap", "membw_gb", confined(membw_gb=0)),
    on_key("a gate the wrong way round", "xnuma-inverted", "xnuma_threshold", grouped(xnuma_threshold=[0.7, 0.6])),
    on_key("an imbalance the wrong way round", "xnuma-inverted", "xnuma_threshold_delta",
           grouped(xnuma_threshold_delta=[0.3, 0.2])),
    on_key("a limit to preempting", "preempt-unlimited", "disallow_preempt_after_us",
           grouped(preempt=True, disallow_preempt_after_us=0)),
    on_key("preempt_first alone", "preempt-first-alone", "preempt_first", grouped(preempt_first=True)),
    on_key("a weight of 20000", "weight-clamped", "weight", grouped(weight=20_000)),
    on_key("more than all yields", "yield-ignore-range", "yield_ignore", grouped(yield_ignore=1.5)),
    on_key("less than no yield", "yield-ignore-range", "yield_ignore", grouped(yield_ignore=-0.5)),
    on_key("busier than busy", "util-range-unreached", "util_range", confined(util_range=[0.8, 1.5])),
    on_key("no CPU of its own", "layer-no-cpus", "cpus_range", grouped(cpus_range=[0, 0])),
    Wrong("one name for two", "layer-name-twice", "[1].name", [layer(name="rest"), REST]),
    on_key("a slice in nanoseconds", "slice-too-long", "slice_us", grouped(slice_us=20_000_000)),
    on_key("a slice in milliseconds", "slice-too-short", "slice_us", grouped(slice_us=1)),
    on_key("a charge beyond all time", "charge-too-long", "min_exec_us", grouped(min_exec_us=10**18)),
    Wrong(
        "the rest on one CPU",
        "rest-squeezed",
        "[1]",
        [layer(), {**REST, "kind": confined(cpus_range=[1, 1])}],
        EIGHT,
    ),
    # What is worth knowing.
    Wrong("an Open layer", "open-limits-early", "[0]", [OPEN]),
    on_match("a hint", "hint-needs-map", "HintEquals", 3),
    on_match("a process number", "pid-stale", "TGIDEquals", 4711),
    on_match("a path without its end", "cgroup-prefix-open", "CgroupPrefix", "system.slice/docker"),
)  # fmt: skip

RIGHT = {
    "one layer": ([REST], EIGHT),
    "a label": ([layer(match("CmdJoin", "train"), grouped(preempt=True, preempt_first=True)), REST], EIGHT),
    "the longest name": ([layer(match("CommPrefix", "a" * 15), name="a" * 127), REST], EIGHT),
    "a leader that used a GPU, among others": (
        [layer([[{"CommPrefix": "pt_"}], [{"CmdJoin": "train"}]], grouped(perf=1024, exclusive=True)), REST],
        SCHEDUTIL,
    ),
    "the narrower before the wider": (
        [layer(match("CommPrefix", "pt_data")), layer(match("CommPrefix", "pt_"), name="two"), REST],
        EIGHT,
    ),
    "what is left of a name": (
        [layer([[{"CommPrefix": "pt_"}, {"CommPrefixExclude": "pt_data"}]]), layer([[COMM]], name="two"), REST],
        EIGHT,
    ),
    "nice on both sides": (
        [layer(match("NiceBelow", 0)), layer(match("NiceAbove", 0), name="two"), REST],
        EIGHT,
    ),
    "runs in a row": (
        [layer(match("AvgRuntime", [0, 100])), layer(match("AvgRuntime", [100, 200]), name="two"), REST],
        EIGHT,
    ),
    "kept, but not all": ([layer(None, confined(protected=True, cpus_range=[1, 7])), REST], EIGHT),
    "every CPU once": (
        [
            layer(None, grouped(cpus_range_frac=[0.5, 1])),
            layer(match("CommPrefix", "b"), confined(cpus_range_frac=[0.5, 0.5]), name="two"),
            REST,
        ],
        EIGHT,
    ),
    "one name left out, another taken, in blocks of their own": (
        [layer([[{"CommPrefixExclude": "pt_"}, {"NiceBelow": 0}], [{"CommPrefix": "sh"}]]), REST],
        EIGHT,
    ),
    "names left out of which one begins like the other": (
        [layer([[{"CommPrefixExclude": "pt_"}], [{"CommPrefixExclude": "pt_data"}]]), REST],
        EIGHT,
    ),
    "a word's start": ([layer(match("CgroupRegex", r"\b{start}job\b{end-half}(?-u:\w)")), REST], EIGHT),
    "the rest confined to enough": ([layer(), {**REST, "kind": confined(cpus_range=[0, 4])}], EIGHT),
    "a layer as its values in order": ([["first", None, None, PYTHON, grouped()], REST], EIGHT),
    "an expression of whole paths": ([layer(match("CgroupRegex", "^/sys/fs/cgroup/a|b/$")), REST], EIGHT),
    "nodes that are there": ([layer(None, grouped(nodes=[0, 1], llcs=[1])), REST], EIGHT),
    "a template": ([layer(template={"CgroupSuffix": "job.scope"}), REST], EIGHT),
    "busier than its own CPUs": (
        [layer(None, grouped(util_range=[0.5, 1.2], util_includes_open_cputime=True)), REST],
        EIGHT,
    ),
}
"""Policies that differ little from wrong ones, and are right."""
