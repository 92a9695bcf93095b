"""Reasons about policies of thread layers: what scx_layered refuses, and what it silently accepts."""

from __future__ import annotations

from typing import Final

from strata.reasons.meaning import Meaning, Meanings

REFUSED: Final[Meanings] = {
    "policy-unreadable": Meaning("{fault}",
        "scx_layered cannot read this part of the policy, and does not start.",
        "Correct what the sentence names; names and types are those of scx_layered's config.rs."),
    "policy-size": Meaning("{count} layers; 1 to {limit} are allowed",
        "scx_layered refuses a policy without layers or with more than it was compiled for.",
        "Merge layers that are treated alike: one layer may match several sets of threads."),
    "catch-all-missing": Meaning('the last layer, {name!r}, must match every thread: "matches": [[]]',
        "scx_layered treats a thread that fits no layer as an error, so it requires a last layer that matches "
        "all.",
        'Add a last layer with "matches": [[]].'),
    "matches-empty": Meaning("layer {name!r} has no match block and is not the last",
        "scx_layered refuses a layer before the last that matches nothing.",
        "Give it a block, or remove the layer."),
    "matches-too-many": Meaning("{what}",
        "scx_layered has fixed limits on blocks, on conditions in a block, and on regular expressions.",
        "Use shorter prefixes that cover several names, or split the layer."),
    "match-text-too-long": Meaning("{size} bytes; the limit is {limit}",
        "scx_layered refuses the policy. A thread's name is 15 bytes at most.",
        "Shorten the text; a prefix matches longer names."),
    "match-value-range": Meaning("{matcher} {value} is not from {low} to {high}",
        "scx_layered refuses the policy.",
        "Give a value in the range; utilisations are shares of 1."),
    "hint-misused": Meaning("{why}",
        "Hints are looked up in one table; scx_layered refuses them beside other conditions or in two layers.",
        "Give each hint its own block, in one layer."),
    "cpus-range-wrong": Meaning("{why}",
        "scx_layered refuses the layer's number of CPUs, partly only after it has started, or panics as it runs. "
        "Shares the wrong way round that come to one number of CPUs it takes.",
        "Give cpus_range [least, most] or cpus_range_frac, shares from 0 to 1, but not both."),
    "util-range-wrong": Meaning("{why}",
        "The range of utilisation decides when a layer grows and shrinks; scx_layered refuses it.",
        'Give "util_range": [low, high] with 0 <= low < high; an Open layer has none.'),
    "regex-wrong": Meaning("not a regular expression that scx_layered accepts: {why}",
        "Rust's regex library compiles it when the scheduler starts; on an error the scheduler exits.",
        "Correct it; use CgroupPrefix or CgroupContains where that is enough."),
    "template-unsupported": Meaning("a template by {matcher} is not supported",
        "scx_layered panics on templates by anything but CgroupSuffix and CgroupRegex.",
        "Use one of these two."),
    "template-misused": Meaning("{why}",
        "When the scheduler starts, a template is replaced by a layer for each cgroup that fits it. The result "
        "is refused: it has more than 16 layers, or a last one that does not match all threads.",
        "Name the cgroups' common ending, and leave the last layer without a template."),
    "numa-node-spread": Meaning("NumaNode with {algo}: the CPUs that it takes on other nodes stay idle",
        "The layer's threads run on one node, but its CPUs are spread over all nodes; scx_layered refuses that.",
        "Use a growth_algo that does not spread, such as Linear or Topo."),
    "place-absent": Meaning("{what}: the machine has {has}; name each at most once",
        "scx_layered refuses NUMA nodes and caches that do not exist or are named twice.",
        "Name existing ones; `strata host layers` writes a policy for the machine it runs on."),
    "cpu-ids-have-holes": Meaning("the {what} numbers of this machine have gaps",
        "scx_layered expects CPUs and nodes to be numbered from 0 without gaps, and refuses machines where some "
        "are off.",
        "Switch the CPUs on, or use `strata host layers --plain`."),
}  # fmt: skip
"""What scx_layered refuses itself, most of it only after it was started."""

ACCEPTED_WRONG: Final[Meanings] = {
    "key-unknown": Meaning("unknown key: {key!r} is silently ignored{meant}",
        "scx_layered ignores keys that it does not know, so a misspelt setting has no effect.",
        "Correct the key or remove it."),
    "catch-all-early": Meaning("layer {name!r} matches every thread; the layers after it never get one",
        "The first layer that matches takes a thread, and this block matches all.",
        "Move the layer to the end, or narrow what it matches."),
    "layer-shadowed": Meaning("layer {name!r} never gets a thread: {by} matches them all first",
        "Whatever this layer matches is matched by an earlier one.",
        "Put the narrower layer first, or remove it."),
    "match-never": Meaning("{why}",
        "No thread can ever match this block, so it has no effect.",
        "Put alternatives into separate blocks; all conditions of one block must hold together."),
    "match-text-panics": Meaning("{why}: scx_layered panics on it",
        "The text is copied with its terminating zero into a fixed buffer; the check before it is off by one, or "
        "absent.",
        "Shorten the text by the excess bytes."),
    "layer-name-panics": Meaning(
        "the name is {size} bytes; {limit} fit, without a zero byte, or scx_layered panics",
        "Names are cut to 128 bytes, one too many for the buffer they are copied into.",
        "Shorten the name; a template adds up to 64 bytes to it."),
    "cgroup-path-form": Meaning("never matches: {why}",
        "scx_layered compares with paths like system.slice/docker/: no leading slash, one trailing slash.",
        "Write the path in that form."),
    "template-idle": Meaning("no cgroup ends with {suffix!r} here: a template's paths have no trailing slash",
        "Unlike CgroupSuffix in matches, a template is compared with paths without the trailing slash. It fits "
        "none, and the layer is used as one layer without the cgroup condition.",
        "Omit the slash."),
    "kthread-inverted": Meaning("IsKthread false matches kernel threads, as true does",
        "The scheduler's BPF part does not look at the value.",
        "Leave it out; put kernel threads into an earlier layer with IsKthread true."),
    "perf-too-high": Meaning("perf {perf} is above {limit}: the kernel ejects the scheduler",
        "It is passed unchanged to scx_bpf_cpuperf_set, which ejects a scheduler that asks for too much.",
        "Give 1 to 1024, 1024 being the top frequency; 0 asks for nothing."),
    "cpus-minima-exceed": Meaning("layers ask for at least {asked} CPUs, but there are {where}",
        "Not all layers can have their minimum; which ones do not depends on the order of growth.",
        "Lower cpus_range or cpus_range_frac."),
    "protected-leaves-none": Meaning("protected layers keep at least all of {where}; every other thread starves",
        "No other layer may use a protected layer's CPUs, even idle ones.",
        "Leave at least one CPU out of their minima."),
    "util-range-percent": Meaning(
        "[{low}, {high}] are shares, not percentages: the layer releases CPUs until they are {low} times busy",
        "util_range is the utilisation of one CPU, from 0 to 1. Above that the layer stays at its fewest CPUs.",
        "Divide by 100: [0.4, 0.85]."),
}  # fmt: skip
"""What it accepts silently, and then dies of or does the opposite of what was meant."""

DOUBTFUL: Final[Meanings] = {
    "key-ignored": Meaning("{key} is not read here; it belongs to {where}",
        "scx_layered silently ignores the key.",
        "Move it where it is read, or remove it."),
    "key-deprecated": Meaning("{key} no longer has any effect",
        "scx_layered reads the key for the sake of old files, warns, and ignores it.",
        "Remove it."),
    "match-shadowed": Meaning("every thread that fits this block is matched by layer {by!r} first",
        "The layer gets threads by its other blocks, never by this one.",
        "Remove the block, or move the layer before the other."),
    "protected-can-take-all": Meaning("protected layers may grow to all of {where}",
        "No other layer may use a protected layer's CPUs, and nothing limits how many they take.",
        "Give protected layers a cpus_range or cpus_range_frac that leaves some."),
    "open-preempt-protected": Meaning("preempt does not reach the CPUs of protected {protected}",
        "An Open layer owns no CPUs; it may preempt only on CPUs that no layer protects.",
        "Make the layer Grouped with CPUs of its own, or remove the protection."),
    "topology-ignored": Meaning(
        "{what} is cleared: this machine has one NUMA node and no second cache to tell apart",
        "scx_layered switches topology off on such a machine, and drops nodes and llcs with it.",
        "No action is needed if the policy is for a larger machine (--elsewhere)."),
    "gpu-catches-loaders": Meaning(
        "{matcher} alone takes every thread of a process that uses a GPU, its loaders too",
        "Data loaders and thread pools run in the process that launches kernels and has the device open.",
        "Add IsGroupLeader true or a CommPrefix, or label the launching thread and match CmdJoin."),
    "gpu-needs-flag": Meaning("{matcher} ends the scheduler unless it is started with --enable-gpu-support",
        "GPU use is detected by probes in the NVIDIA driver, which are off by default.",
        "Start scx_layered with --enable-gpu-support."),
    "perf-no-schedutil": Meaning("perf has no effect with governor {governor}",
        "The performance level a scheduler asks for is only read by schedutil.",
        "Use the governor schedutil, or use performance and remove perf."),
    "exclusive-no-smt": Meaning("exclusive has no effect: no core has two CPUs",
        "It keeps the other CPU of the core idle; here there is none.",
        "Remove it."),
    "membw-no-monitor": Meaning(
        "membw_gb has no effect, or stops the start: the kernel counts no memory traffic here",
        "The cap is computed from resctrl's counters (mon_data) and the processor's, which must be known.",
        "Mount resctrl on a processor that monitors bandwidth, or remove the cap."),
    "membw-no-cap": Meaning("membw_gb {value} has no effect",
        "scx_layered treats 0 and negative values as no cap.",
        "Give a value in GiB/s above 0, or omit it."),
    "xnuma-inverted": Meaning(
        "[{low}, {high}]: work starts to move to another node above the second and stops below the first",
        "With the first above the second, the two overlap and threads flap between nodes.",
        "Give the lower value first."),
    "preempt-unlimited": Meaning("{key} is ignored in a layer that preempts",
        "scx_layered sets it to never there.",
        "Remove one of the two."),
    "preempt-first-alone": Meaning("preempt_first has no effect without preempt",
        "It says where to preempt first, in a layer that may preempt.",
        "Add preempt, or remove it."),
    "weight-clamped": Meaning("weight {weight} is clamped to {limit}",
        "scx_layered clamps weights; 0 stands for 100.",
        "Give 1 to 10000."),
    "yield-ignore-range": Meaning("yield_ignore {value} is not from 0 to 1; a yield {does}",
        "It is the share of yields that is ignored: 0 gives up the slice, 1 ignores all.",
        "Give a share."),
    "util-range-unreached": Meaning("a utilisation of {high} is never reached, so the layer does not grow",
        "CPUs are added where utilisation per CPU is above the upper end, and it is 1 at most unless time on "
        "other CPUs counts.",
        "Give an upper end below 1, or util_includes_open_cputime in a Grouped layer."),
    "layer-no-cpus": Meaning("layer {name!r} cannot own any CPU",
        "A Grouped layer with cpus_range [0, 0] only ever runs on idle CPUs of others.",
        "Give it a CPU, or make it Open."),
    "layer-name-twice": Meaning("the name {name!r} is used by an earlier layer; statistics show only one of them",
        "Statistics are kept by name.",
        "Give each layer a unique name."),
    "slice-too-long": Meaning("a slice of {seconds} s lets a thread keep a CPU that long",
        "slice_us is in microseconds; the default is 20 ms, and the kernel ejects a scheduler under which a "
        "thread waits too long (30 s).",
        "Give microseconds: 20000 is 20 ms."),
    "slice-too-short": Meaning("a slice of {us} us is spent on switching from thread to thread",
        "slice_us is in microseconds. A switch and cold caches cost some microseconds each; 0 means the default.",
        "Leave slice_us out (20 ms), or give a hundred microseconds or more."),
    "charge-too-long": Meaning("each run is charged as {seconds} s of CPU time, however short it was",
        "min_exec_us is in microseconds. A thread that wakes up often is then always last in line.",
        "Give microseconds: 1000 is 1 ms."),
    "rest-squeezed": Meaning("the layer for everything else, {name!r}, is Confined to {most} of {where}",
        "A Confined layer never leaves its CPUs, also where all others are idle; daemons, shells and kernel "
        "threads are in the last layer.",
        "Make the last layer Open, or give it more CPUs."),
}  # fmt: skip
"""What it accepts and does not do, or does differently from how it reads."""

REMARKS: Final[Meanings] = {
    "open-limits-early": Meaning(
        "the disallow_open and disallow_preempt limits of {name!r} act a thousand times earlier than stated",
        "scx_layered (1.1.2) fills its nanosecond limits for Open layers with microseconds, so that 40 ms of "
        "saturation are 40 us.",
        "No action is possible; do not rely on Open threads keeping a busy CPU for those times."),
    "hint-needs-map": Meaning(
        "HintEquals needs scx_layered --task-hint-map PATH, and threads that write their hint to it",
        "Without the map no thread has a hint, and the block matches none.",
        "No action is needed if it is started that way; CmdJoin needs no map."),
    "pid-stale": Meaning("{matcher} matches until that process ends, and then whichever process reuses its number",
        "Process ids are reused.",
        "Match by name, cgroup or CmdJoin."),
    "cgroup-prefix-open": Meaning(
        "{prefix!r} also matches siblings with the same beginning; with a trailing slash it would not",
        "The prefix is compared as text with paths that end with a slash.",
        "Add a trailing slash if only that cgroup is meant."),
}  # fmt: skip
"""What is right, with something to know."""

LAYERS: Final[Meanings] = {**REFUSED, **ACCEPTED_WRONG, **DOUBTFUL, **REMARKS}
