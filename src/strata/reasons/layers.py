"""Of policies of thread layers: what scx_layered silently accepts."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

LAYERS: Final[Meanings] = {
    "policy-unreadable": Meaning(
        "{fault}",
        "scx_layered cannot read this part of the policy, and does not start.",
        "Correct what the sentence names; names and types are those of scx_layered's config.rs.",
    ),
    "policy-size": Meaning(
        "{count} layers where 1 to {limit} are taken",
        "scx_layered refuses a policy without layers or with more than it was compiled for.",
        "Join layers that are run alike: one layer may match several sets of threads.",
    ),
    "catch-all-missing": Meaning(
        "the last layer, {name!r}, must match every thread: \"matches\": [[]]",
        "A thread that fits no layer is an error to scx_layered, so it asks for a last layer that takes all.",
        "Add a last layer with \"matches\": [[]].",
    ),
    "matches-empty": Meaning(
        "layer {name!r} has no match block and is not the last",
        "scx_layered refuses a layer before the last that matches nothing.",
        "Give it a block, or remove the layer.",
    ),
    "matches-too-many": Meaning(
        "{what}",
        "scx_layered has a fixed room for blocks, for conditions in a block, and for regular expressions.",
        "Use shorter prefixes that cover several names, or split the layer.",
    ),
    "match-text-too-long": Meaning(
        "{size} bytes; at most {limit} are compared",
        "scx_layered refuses the policy. A thread's name is 15 bytes at most.",
        "Shorten the text; a prefix matches longer names.",
    ),
    "match-value-range": Meaning(
        "{matcher} {value} is not from {low} to {high}",
        "scx_layered refuses the policy.",
        "Give a value in the range; utilisations are shares of 1.",
    ),
    "hint-misused": Meaning(
        "{why}",
        "Hints are looked up in one table; scx_layered refuses them beside other conditions or in two layers.",
        "Give each hint its own block, in one layer.",
    ),
    "cpus-range-wrong": Meaning(
        "{why}",
        "scx_layered refuses the layer's number of CPUs, partly only after it has started.",
        "Give cpus_range [least, most] or cpus_range_frac, shares from 0 to 1, but not both.",
    ),
    "util-range-wrong": Meaning(
        "{why}",
        "The range of utilisation decides when a layer grows and shrinks; scx_layered refuses it.",
        "Give \"util_range\": [low, high] with 0 <= low < high; an Open layer has none.",
    ),
    "regex-wrong": Meaning(
        "no regular expression that scx_layered takes: {why}",
        "It is compiled by Rust's regex library when the scheduler starts, which then ends.",
        "Correct it; use CgroupPrefix or CgroupContains where that is enough.",
    ),
    "template-unsupported": Meaning(
        "a template by {matcher} is not built",
        "scx_layered panics on templates by anything but CgroupSuffix and CgroupRegex.",
        "Use one of these two.",
    ),
    "template-misused": Meaning(
        "{why}",
        "A template is replaced by a layer for each cgroup that fits it, when the scheduler starts. What comes "
        "out is refused: more than 16 layers, or a last one that does not take all.",
        "Name the cgroups' common ending, and leave the last layer without a template.",
    ),
    "numa-node-spread": Meaning(
        "NumaNode with {algo}: the CPUs it takes on the other nodes stay idle",
        "The layer's threads live on one node, but its CPUs are spread over all; scx_layered refuses that.",
        "Use a growth_algo that does not spread, as Linear or Topo.",
    ),
    "place-absent": Meaning(
        "{what}: the machine has {has}, each to be named once",
        "scx_layered refuses NUMA nodes and caches that are not there or named twice.",
        "Name those that are there; `strata host layers` writes a policy for the machine it runs on.",
    ),
    "cpu-ids-have-holes": Meaning(
        "{what} numbers of this machine have holes",
        "scx_layered counts CPUs and nodes from 0 without a gap and refuses other machines (CPUs switched off).",
        "Switch the CPUs on, or use `strata host layers --plain`.",
    ),
    "key-unknown": Meaning(
        "no such key: {key!r} is dropped without a word{meant}",
        "scx_layered drops keys it does not know, so that a misspelt setting has no effect.",
        "Correct the key or remove it.",
    ),
    "catch-all-early": Meaning(
        "layer {name!r} takes every thread; no layer behind it gets one",
        "The first layer that matches takes a thread, and this block matches all.",
        "Move the layer to the end, or say what it is for.",
    ),
    "layer-shadowed": Meaning(
        "layer {name!r} never gets a thread: {by} takes them all before",
        "Whatever this layer matches is matched by an earlier one.",
        "Put the narrower layer first, or remove it.",
    ),
    "match-never": Meaning(
        "{why}",
        "No thread can ever fit this block, so it is dead.",
        "Put alternatives into blocks of their own; conditions of one block must hold together.",
    ),
    "match-text-panics": Meaning(
        "{why}: scx_layered panics on it",
        "The text is copied into a fixed room with its end; the check before it is off by one, or absent.",
        "Shorten the text by the bytes that are too many.",
    ),
    "layer-name-panics": Meaning(
        "the name is {size} bytes; {limit} fit, without a zero byte, or scx_layered panics",
        "Names are cut to 128 bytes, one too many for the room they are copied to.",
        "Shorten the name; a template adds up to 64 bytes to it.",
    ),
    "cgroup-path-form": Meaning(
        "never matches: {why}",
        "scx_layered compares with paths like system.slice/docker/: no slash before, one behind.",
        "Write the path as it does.",
    ),
    "template-idle": Meaning(
        "no cgroup ends with {suffix!r} here: a template's paths have no slash at their end",
        "Unlike CgroupSuffix in matches, a template is compared with paths without the last slash. It fits "
        "none, and the layer is taken as one layer without the cgroup's condition.",
        "Leave out the slash.",
    ),
    "kthread-inverted": Meaning(
        "IsKthread false matches kernel threads, as true does",
        "The scheduler's BPF part does not look at the value.",
        "Leave it out; put kernel threads into an earlier layer with IsKthread true.",
    ),
    "perf-too-high": Meaning(
        "perf {perf} is above {limit}: the kernel ejects the scheduler",
        "It is handed to scx_bpf_cpuperf_set as it stands, which ends a scheduler that asks for too much.",
        "Give 1 to 1024, 1024 being the top frequency; 0 asks for nothing.",
    ),
    "cpus-minima-exceed": Meaning(
        "layers ask for {asked} CPUs at least, where there are {where}",
        "Not all layers can have their minimum; who goes without depends on the order of growth.",
        "Lower cpus_range or cpus_range_frac.",
    ),
    "protected-leaves-none": Meaning(
        "protected layers keep all of {where} at least; every other thread starves",
        "Nobody else may use a protected layer's CPUs, even idle ones.",
        "Leave a CPU or more out of their minima.",
    ),
    "key-ignored": Meaning(
        "{key} is not read here; it belongs to {where}",
        "scx_layered drops the key without a word.",
        "Move it where it is read, or remove it.",
    ),
    "key-deprecated": Meaning(
        "{key} does nothing any more",
        "scx_layered reads the key for the sake of old files, warns, and ignores it.",
        "Remove it.",
    ),
    "match-shadowed": Meaning(
        "all that fits this block is taken by layer {by!r} before",
        "The layer gets threads by its other blocks, never by this one.",
        "Remove the block, or move the layer before the other.",
    ),
    "protected-can-take-all": Meaning(
        "protected layers may grow to all of {where}",
        "Nobody else may use a protected layer's CPUs, and nothing limits how many they take.",
        "Give protected layers a cpus_range or cpus_range_frac that leaves some.",
    ),
    "open-preempt-protected": Meaning(
        "preempt does not reach the CPUs of protected {protected}",
        "An Open layer owns no CPUs; what it may preempt is what no layer protects.",
        "Make the layer Grouped with CPUs of its own, or do without protection.",
    ),
    "topology-ignored": Meaning(
        "{what} is cleared: this machine has one NUMA node and no second cache to tell apart",
        "scx_layered switches topology off on such a machine, and drops nodes and llcs with it.",
        "Nothing to do if the policy is for a larger machine (--elsewhere).",
    ),
    "gpu-catches-loaders": Meaning(
        "{matcher} alone takes every thread of a process that uses a GPU, its loaders too",
        "Data loaders and pools live in the process that launches kernels, and open the device with it.",
        "Add IsGroupLeader true or a CommPrefix, or label the launching thread and match CmdJoin.",
    ),
    "gpu-needs-flag": Meaning(
        "{matcher} ends the scheduler unless it is started with --enable-gpu-support",
        "Who uses a GPU is learnt by probes in the NVIDIA driver, which are off by default.",
        "Start scx_layered with --enable-gpu-support.",
    ),
    "perf-no-schedutil": Meaning(
        "perf has no effect with governor {governor}",
        "The performance level a scheduler asks for is only read by schedutil.",
        "Use the governor schedutil, or performance and no perf.",
    ),
    "exclusive-no-smt": Meaning(
        "exclusive has no effect: no core has two CPUs",
        "It keeps the other CPU of the core idle; here there is none.",
        "Remove it.",
    ),
    "membw-no-monitor": Meaning(
        "membw_gb has no effect, or stops the start: the kernel counts no memory traffic here",
        "The cap is computed from resctrl's counters (mon_data) and the processor's, which must be known.",
        "Mount resctrl on a processor that monitors bandwidth, or remove the cap.",
    ),
    "membw-no-cap": Meaning(
        "membw_gb {value} caps nothing",
        "scx_layered takes 0, and all that is below it, for no cap.",
        "Give GiB/s above 0, or leave it out.",
    ),
    "xnuma-inverted": Meaning(
        "[{low}, {high}]: work starts to move to another node above the second and stops below the first",
        "With the first above the second, the two overlap and threads flap between nodes.",
        "Give the lower value first.",
    ),
    "preempt-unlimited": Meaning(
        "{key} is ignored in a layer that preempts",
        "scx_layered sets it to never there.",
        "Remove one of the two.",
    ),
    "preempt-first-alone": Meaning(
        "preempt_first does nothing without preempt",
        "It says where to preempt first, in a layer that may preempt.",
        "Add preempt, or remove it.",
    ),
    "weight-clamped": Meaning(
        "weight {weight} is taken as {limit}",
        "scx_layered cuts weights off there; 0 stands for 100.",
        "Give 1 to 10000.",
    ),
    "yield-ignore-range": Meaning(
        "yield_ignore {value} is not from 0 to 1; a yield {does}",
        "It is the share of yields that is ignored: 0 gives up the slice, 1 ignores all.",
        "Give a share.",
    ),
    "util-range-unreached": Meaning(
        "a utilisation of {high} is never reached, so the layer does not grow",
        "CPUs are added where utilisation per CPU is above the upper end, and it is 1 at most unless time on "
        "other CPUs counts.",
        "Give an upper end below 1, or util_includes_open_cputime in a Grouped layer.",
    ),
    "util-range-percent": Meaning(
        "[{low}, {high}] are shares, not percents: the layer gives CPUs back until they are {low} times busy",
        "util_range is the utilisation of one CPU, from 0 to 1. Above that the layer stays at its fewest CPUs.",
        "Divide by 100: [0.4, 0.85].",
    ),
    "layer-no-cpus": Meaning(
        "layer {name!r} may own no CPU at all",
        "A Grouped layer with cpus_range [0, 0] only ever runs on idle CPUs of others.",
        "Give it a CPU, or make it Open.",
    ),
    "layer-name-twice": Meaning(
        "the name {name!r} is taken by an earlier layer; statistics show one of them",
        "Statistics are kept by name.",
        "Give each layer a name of its own.",
    ),
    "slice-too-long": Meaning(
        "a slice of {seconds} s lets a thread keep a CPU that long",
        "slice_us is in microseconds; the default is 20 ms, and the kernel ejects a scheduler under which a "
        "thread waits too long (30 s).",
        "Give microseconds: 20000 is 20 ms.",
    ),
    "open-limits-early": Meaning(
        "the disallow_open and disallow_preempt limits of {name!r} act a thousand times earlier than they say",
        "scx_layered (1.1.2) fills its nanosecond limits for Open layers with microseconds, so that 40 ms of "
        "saturation are 40 us.",
        "Nothing to do; do not count on Open threads keeping a busy CPU for those times.",
    ),
    "hint-needs-map": Meaning(
        "HintEquals needs scx_layered --task-hint-map PATH, and threads that write their hint to it",
        "Without the map no thread has a hint, and the block matches none.",
        "Nothing to do if it is started so; CmdJoin needs no map.",
    ),
    "pid-stale": Meaning(
        "{matcher} holds until that process ends, and then for whoever gets its number",
        "Process numbers are not names.",
        "Match by name, cgroup or CmdJoin.",
    ),
    "cgroup-prefix-open": Meaning(
        "{prefix!r} also matches its siblings that begin alike; with a slash at the end it would not",
        "The prefix is compared as text with paths that end with a slash.",
        "Add a slash at the end if only that cgroup is meant.",
    ),
}  # fmt: skip
