from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from strata.decision import Reason, Trust, digest, worst
from strata.reasons import REASONS
from tests import ROOT

SOURCES = ROOT / "src" / "strata"

SAMPLES = {
    "chosen": {"objective": "time", "considered": 812},
    "slower": {"factor": 1.2345},
    "as-good": {},
    "dearer": {"factor": 3},
    "scores-lower": {"score": 0.41234, "best": 0.5, "objective": "reward"},
    "memory-exceeded": {"need": "91GiB", "have": "74.5GiB"},
    "link-missing": {"source": "east", "dest": "lab"},
    "links-missing": {"count": 55, "pairs": "a-c, a-d, b-d and 52 more"},
    "link-too-slow": {
        "source": "east", "dest": "west", "bandwidth": "5Gbps", "latency": "30ms", "added": "2s", "step": "4s",
    },
    "unreachable": {"domain": "lab"},
    "domain-not-allowed": {"domain": "lab"},
    "figure-missing": {"figure": "dense FP16 FLOP/s", "accelerator": "LabCard-48G"},
    "no-accelerators": {"domain": "lab"},
    "no-such-domain": {"domain": "lab", "known": "a, b"},
    "layers-not-covered": {"held": "0-3, 5-7", "last": 8},
    "warmup-rises": {"warmup": [0, 0]},
    "no-sum-between": {"count": 2},
    "devices-short": {"used": 32, "have": 16},
    "tensor-across-nodes": {"ranks": 16, "devices": 8},
    "heads-not-divided": {"ranks": 5, "heads": 32},
    "linear-heads-not-divided": {"ranks": 16, "count": 8, "what": "Mamba groups", "nearest": 8},
    "kv-heads-not-divided": {"ranks": 4, "heads": "10", "nearest": 2},
    "context-not-divided": {"ranks": 3, "count": 8192, "what": "tokens of a sequence"},
    "experts-not-divided": {"ranks": 3, "count": 128, "what": "experts"},
    "batch-differs": {"samples": 64, "batch": 512},
    "pins-not-kept": {"pins": "tensor 8"},
    "not-asked": {"choice": "zero 3"},
    "node-too-small": {"ranks": 8, "devices": 4},
    "dualpipev-needs": {"what": "two stages or more"},
    "no-stages-asked": {"domain": "West"},
    "pins-too-narrow": {"pins": "tensor 8, pipeline 4", "dropped": "pipeline"},
    "over-budget": {"cost": "$1.20", "limit": "$1.00"},
    "too-slow": {"reached": "1.2k", "floor": "2k"},
    "compute-bound": {"share": 0.93},
    "network-bound": {"share": 0.5},
    "bubble-bound": {"share": 0.25},
    "single-domain-best": {"domain": "east", "factor": 1.5, "comparison": "takes 1.50x"},
    "fits-with-recompute": {"mode": "full"},
    "needs-devices": {"count": 3, "memory": "80GiB", "kind": "A100-SXM4-80GB"},
    "needs-limit": {"limit": "cost", "value": "$2"},
    "needs-unknown": {"elapsed": "10s"},
    "tokens-penalty": {"steps": 50, "eta": 1.05},
    "time-limit": {"elapsed": "10s", "evaluated": 3000},
    "scale-estimated": {"objective": "reward"},
    "layers-do-not-fit": {"have": 31, "need": 32, "nodes": 4},
    "nodes-apart": {"nodes": 4},
    "cluster-offered": {
        "pods": 2, "devices": 8, "model": "A100-SXM4-80GB", "level": "rdma", "cost": "$32.00", "run": "1h",
        "way": ", its data there", "chance": 0.5,
    },
    "cluster-next": {"what": "2 pods of 8 A100"},
    "cluster-any": {},
    "cluster-unseen": {"why": "not listed yet: nodes"},
    "cluster-queues": {},
    "cluster-adopted": {},
    "cluster-full": {"why": "a: 2 pods fit nowhere on 3 nodes"},
    "cluster-away": {"why": "connection refused"},
    "cluster-refused": {"devices": 16, "why": "no quota", "until": "2026-11-26T15:00:00Z"},
    "no-cluster": {},
    "room-by-moving": {"gangs": "Job/a/b", "nodes": 1, "model": "A100", "cost": 960.0, "how": "the least"},
    "moved-for-another": {"gang": "Job/a/c", "cost": 960.0},
    "node-stale": {},
    "join-again": {},
    "node-left": {},
    "node-silent": {"seconds": 60.0},
    "load-too-slow": {"seconds": 60.0},
    "node-lost": {},
    "node-forgot": {},
    "attempt-failed": {},
    "attempts-exhausted": {"attempts": 5},
    "request-known": {},
    "request-too-long": {"tokens": 9000, "most": 8192},
    "queue-full": {"waiting": 10_000},
    "makes-room": {},
    "plan-kept": {"pipelines": 3},
    "times-unforeseen": {"times": 2.5},
    "holds-no-layer": {"need": "2.3MiB", "batch": 8, "have": "97KiB"},
    "holds-not-all": {"need": "2.3MiB", "batch": 8, "have": "97KiB"},
    "batch-cut": {"asked": 8, "batch": 2},
    "fewer-tokens": {"ratio": 0.91},
    "less-goodput": {"ratio": 0.5},
    "slower-decode": {"factor": 3.66},
    "same-plan": {},
    "nodes-cut": {"domains": "West", "groups": "2", "devices": 4,
                  "gain": "1.39x the requests within the goals of whole nodes, 1.69x the decode time"},
    "vendor-mix": {"count": 2, "total": 10, "vendors": "AMD and NVIDIA"},
    "devices-in-use": {"used": 16, "free": 4},
    "beyond-context": {"limit": 131_072, "asked": 200_000},
    "kv-bound": {"slots": 20, "need": 64, "share": 0.31},
    "pipeline-not-worth": {"tokens": 0.05, "decode": 0.4},
    "goal-out-of-reach": {"goal": "each token", "wanted": "15ms", "best": "20ms"},
    "batch-above-goal": {"count": 2, "total": 10, "sequences": 12, "batch": 32, "asked": "50ms"},
    "goal-missed": {"count": 2, "total": 10, "figure": "TTFT", "reached": "3.2s", "asked": "2s"},
    "nobody-serves": {"nodes": 0},
    "not-served-in-time": {"wanted": "500ms", "waited": "510ms"},
    "waited-too-long": {"wanted": "500ms", "waited": "330ms", "best": "360ms"},
    "rate-not-served": {"served": 12.3, "asked": 28.0},
    "fits-with-precision": {"what": "weights", "precision": "fp8"},
    "fits-with-less": {"what": "tokens a request", "value": 512, "asked": 1280},
    "astra-links-differ": {"dimension": "domains", "low": "3Gbps, 50ms", "high": "5Gbps, 30ms"},
    "astra-diagonal": {"source": "stage 1 (a)", "dest": "stage 2 (b)"},
    "astra-unequal-domains": {"what": "copies", "values": "2, 3"},
    "astra-one-dimension": {"count": 2, "dimensions": "stages, domains"},
    "astra-schedule": {"what": "an interleaved schedule"},
    "astra-links-vary": {},
    "astra-message-too-large": {"size": "4GiB"},
    "kept-binding": {"throughput": 0.97, "considered": 9},
    "rebound": {"name": "swap-worst", "throughput": 0.99, "downtime_s": 21.5, "considered": 9},
    "device-gone": {"devices": "3, 17"},
    "cannot-hold": {"have": 12, "need": 16, "ranks": 8},
    "throughput-fell": {"kept": 0.5, "before": 1.0, "share": 0.2},
    "switch-never-pays": {"gain": 0.12, "steps": 16, "cost": 0.5},
    "figures-not-finite": {"count": 1},
    "pick-not-legal": {"pick": 99},
    "training-preempted": {"waiting": "urgent"},
    "training-shrunk": {"plan": "single Ohio", "devices": 8, "waiting": "urgent"},
    "links-changed": {"source": "east", "dest": "west", "now": "1Gbps", "then": "5Gbps"},
    "rule-by-record": {"family": "one job"},
    "policy-version": {"found": "0", "wanted": 1},
    "fleet-too-large": {"domains": 40, "most": 32},
    "plan-gone": {"domains": "west"},
    "ratios-without-plan": {"domains": "east+west"},
    "no-schedule": {"schedules": "interleaved", "where": "stages in more than one domain"},
    "needs-precision": {"precision": "fp8", "known": "bf16 or fp16"},
    "training-placed": {"plan": "single east", "rate": 0.93},
    "training-kept": {"plan": "single east", "rate": 0.93},
    "training-switched": {"plan": "single east", "now": 0.9, "rate": 0.2, "gain": 3.2, "before": "pp east > west"},
    "waits-for-devices": {"devices": 8},
    "domain-drained": {"domain": "lab"},
    "domain-unheard": {"domain": "lab"},
    "devices-held": {"devices": 8, "domain": "lab", "free": 2, "by": " (held by walk)"},
    "devices-not-allowed": {"devices": 8, "least": 16, "most": "any number"},
    "tried-again-later": {"attempt": 2, "delay": "10 s", "failures": 2, "most": 3, "message": "exit code 1"},
    "no-plan-allowed": {"counts": "8, 16", "least": 32, "most": "any number"},
    "given-up": {"attempt": 4, "failures": 4, "most": 3, "message": "exit code 1", "steps": 20, "of": 100},
    "domains-cannot-meet": {"a": "lab", "b": "west", "why": "no `address` leads to lab from elsewhere"},
    "no-plan-fits": {},
    "domain-vanished": {"domain": "lab"},
    "gang-placed": {
        "pods": 4, "devices": 2, "model": "Ascend910B3", "nodes": 1, "level": "node", "score": 0.91,
    },
    "exchanged": {
        "count": 2, "model": "Ascend910B3", "wanted": "1x A100-SXM4-80GB", "ratio": 1.25, "figure": "memory",
        "norm": "memory", "trust": "measured",
    },
    "fraction-of": {"wanted": "100TFLOPS fp16", "share": 0.4, "model": "A100-SXM4-80GB", "trust": "assumed"},
    "more-than-one-device": {"share": 1.5},
    "devices-too-few": {"asked": 1, "need": 2, "ratio": 1.25},
    "no-profile": {"framework": "mindspore", "profile": "any"},
    "substitution-not-allowed": {"wanted": "A100-SXM4-80GB"},
    "substitution-wanted": {"offer": "2x Ascend910B3", "wanted": "1x A100-SXM4-80GB", "profile": "pytorch-ascend"},
    "no-devices": {},
    "placed-elsewhere": {"nodes": "n1, n2"},
    "node-closed": {},
    "agent-silent": {},
    "node-tainted": {"taint": "sick=yes:NoSchedule"},
    "node-unlabelled": {"label": "pool=train"},
    "devices-busy": {"free": 1, "total": 8, "need": 2},
    "devices-withheld": {"withheld": 4, "total": 8, "free": 1, "need": 2},
    "devices-unhealthy": {"unwell": 7, "free": 1, "total": 8, "limit": 0.5, "need": 2},
    "request-exceeds-node": {"resource": "A100-SXM4-80GB", "need": 51, "total": 4},
    "node-resources-busy": {"resource": "cpu", "need": "8", "free": "1.5", "total": "64"},
    "fraction-busy": {"need": "16GiB", "share": 0.3, "most": "8GiB", "most_share": 0.5},
    "room-for-fewer": {"room": 1, "pods": 2, "level": "rack"},
    "claim-unreadable": {"why": "ai.compute/devices: 'many' is not a whole number"},
    "recreated": {"profile": "pytorch-nvidia"},
    "release-refused": {"why": "spec.template: field is immutable"},
    "gang-runs": {"pods": 2, "devices": 4, "model": "A100-SXM4-80GB", "nodes": 1},
    "gang-moved": {},
    "placement-lost": {},
    "gang-fits-nowhere": {"pods": 8, "nodes": 3},
    "no-pods": {},
    "fits-if": {"what": "substitution", "value": "allow", "model": "Ascend910B3", "nodes": 1},
    "fits-fewer-pods": {"pods": 3, "asked": 4},
    "cluster-too-small": {"nodes": 3},
    "needs-free-devices": {"count": 8, "model": "A100-SXM4-80GB", "pods": 4},
    "node-isolated": {"what": "xid-79 on GPU-1", "times": 2},
    "isolation-waits": {"what": "slow-rate on GPU-1"},
    "node-released": {},
    "standing-unreadable": {"key": "ai.compute/standing", "fault": "no JSON"},
    "checkpoint-unfinished": {"what": ".metadata.tmp"},
    "checkpoint-incomplete": {"what": "__3_0.distcp missing"},
    "checkpoint-torn": {"what": "model.safetensors"},
    "checkpoint-unannounced": {"what": "100"},
    "checkpoint-unknown": {"what": "notes.txt"},
    "checkpoint-unreadable": {"why": "there is no such folder"},
    "no-peer-access": {},
    "policy-unreadable": {"fault": "required key is missing"},
    "policy-size": {"count": 17, "limit": 16},
    "catch-all-missing": {"name": "rest"},
    "matches-empty": {"name": "batch"},
    "matches-too-many": {"what": "33 blocks; a layer takes 32"},
    "match-text-too-long": {"size": 20, "limit": 15},
    "match-value-range": {"matcher": "HintEquals", "value": 2000, "low": 0, "high": 1024},
    "hint-misused": {"why": "more than one HintEquals in a block"},
    "cpus-range-wrong": {"why": "the least, 4, is above the most, 2"},
    "util-range-wrong": {"why": "[0.9, 0.8] is not 0 <= low < high"},
    "regex-wrong": {"why": "unterminated character set"},
    "template-unsupported": {"matcher": "CgroupPrefix"},
    "template-misused": {"why": "every cgroup ends with \"\""},
    "numa-node-spread": {"algo": "NodeSpread"},
    "place-absent": {"what": "node 4", "has": "0, 1"},
    "cpu-ids-have-holes": {"what": "CPU"},
    "key-unknown": {"key": "preemt", "meant": "; did you mean preempt?"},
    "catch-all-early": {"name": "batch"},
    "layer-shadowed": {"name": "third", "by": "second"},
    "match-never": {"why": "TGIDEquals 1 and TGIDEquals 2 never hold together"},
    "match-text-panics": {"why": "is 16 bytes where 15 fit"},
    "layer-name-panics": {"size": 130, "limit": 127},
    "cgroup-path-form": {"why": "paths end with a slash, which the suffix lacks"},
    "template-idle": {"suffix": "common_suffix/"},
    "kthread-inverted": {},
    "perf-too-high": {"perf": 2048, "limit": 1024},
    "cpus-minima-exceed": {"asked": 15, "where": "8 CPUs"},
    "protected-leaves-none": {"where": "8 CPUs"},
    "key-ignored": {"key": "util_range", "where": "Confined and Grouped"},
    "key-deprecated": {"key": "idle_smt"},
    "match-shadowed": {"by": "critical"},
    "protected-can-take-all": {"where": "8 CPUs"},
    "open-preempt-protected": {"protected": "batch"},
    "topology-ignored": {"what": "nodes"},
    "gpu-catches-loaders": {"matcher": "UsedGpuPid"},
    "gpu-needs-flag": {"matcher": "UsedGpuTid"},
    "perf-no-schedutil": {"governor": "powersave"},
    "exclusive-no-smt": {},
    "membw-no-monitor": {},
    "membw-no-cap": {"value": "0"},
    "xnuma-inverted": {"low": "0.7", "high": "0.6"},
    "preempt-unlimited": {"key": "disallow_open_after_us"},
    "preempt-first-alone": {},
    "weight-clamped": {"weight": 20000, "limit": 10000},
    "yield-ignore-range": {"value": "1.5", "does": "is ignored"},
    "util-range-unreached": {"high": "1.5"},
    "util-range-percent": {"low": "40", "high": "85"},
    "layer-no-cpus": {"name": "batch"},
    "layer-name-twice": {"name": "batch"},
    "slice-too-long": {"seconds": "20"},
    "slice-too-short": {"us": 1},
    "charge-too-long": {"seconds": "1e+12"},
    "rest-squeezed": {"name": "rest", "most": 1, "where": "8 CPUs"},
    "open-limits-early": {"name": "rest"},
    "hint-needs-map": {},
    "pid-stale": {"matcher": "TGIDEquals"},
    "cgroup-prefix-open": {"prefix": "system.slice/docker"},
    "no-cpu": {"asked": "9"},
    "no-memory": {"asked": "3"},
    "no-weight": {},
    "no-bandwidth": {"percent": 5},
    "system-idle": {"group": "/system.slice"},
    "user-idle": {"user": 1000},
    "rollout-noise-first": {"pairs": 3, "wanted": 20},
    "rollout-running": {"change": 0.02, "pairs": 40},
    "rollout-better": {"change": 0.04, "pairs": 60},
    "rollout-worse": {"change": -0.04, "pairs": 30},
    "rollout-crashes": {"candidate": 9, "baseline": 1},
    "rollout-jobs-worse": {"jobs": 3, "of": 20},
    "rollout-no-difference": {"pairs": 150},
    "rollout-undecided": {"change": 0.01, "pairs": 200},
    "rollout-stopped": {},
    "rollout-opted-out": {"rule": "team=ads"},
    "rollout-not-opted-in": {},
    "rollout-outside-share": {"share": 0.1},
    "rollout-job-back": {"guard": 0.1},
    "rollout-turn": {"number": 4, "policy": "candidate"},
    "cpu-wait": {"share": 0.4, "culprit": "hog", "culprit_share": 0.9},
    "gpu-idle-cpu-wait": {"share": 0.4, "culprit": "hog"},
    "gpu-idle-launching": {"share": 0.4},
    "cpu-preempted": {"times": 12, "culprit": "hog"},
    "steal-time": {"share": 0.081, "cost": 41.5},
    "cpu-throttled": {"times": 12, "cost": 830.0},
    "irq-time": {"culprit": "irq 36 eth0", "cost": 12.5},
    "crosses-numa": {"times": 12, "rate": 3.0},
    "crosses-llc": {"times": 12, "rate": 3.0},
    "yields-away": {"times": 12, "culprit": "hog"},
    "yield-storm": {"culprit": "spinner", "rate": 12345.0},
    "oversubscription": {"threads": 64, "pool": "omp", "cpus": 8},
    "fork-storm": {"culprit": "make", "rate": 321.0},
    "pin-conflict": {"cpu": 3, "culprit": "hog"},
    "idle-cpu-beside": {"cost": 12.5, "culprit": "hog"},
    "frequency-drop": {"mean": 1.2, "highest": 3.4},
    "straggler": {"ranks": 8, "pool": "trainer", "beyond": 0.2},
    "waker-waits": {"cost": 12.5, "waker": "loader", "culprit": "hog"},
    "thread-starved": {"longest": 1.5},
    "interpreter-lock": {"share": 0.2},
    "page-faults": {"share": 0.2},
    "trace-lost": {"lost": 12, "share": 0.01},
    "trace-clock-back": {"times": 2},
    "trace-damaged": {"lines": 12},
    "trace-cut": {"events": 12000000},
    "launcher-unknown": {"threads": "7, 9"},
    "trace-truncated": {"seconds": 3.5},
    "nothing-critical": {"asked": "trainer"},
}  # fmt: skip


def test_every_reason_has_a_sample_here():
    assert set(SAMPLES) == set(REASONS)


@pytest.mark.parametrize("token", REASONS)
def test_every_reason_reads_as_one_sentence_with_its_data(token):
    text = str(Reason(token, "plan 3", SAMPLES[token]))
    assert text.startswith("plan 3: ")
    assert not set("{}\n") & set(text)


@pytest.mark.parametrize("token", REASONS)
def test_every_reason_says_what_it_means_and_what_to_do(token):
    meaning = REASONS[token]
    assert token == token.lower()
    assert meaning.means.endswith(".")
    assert meaning.remedy.endswith(".")


def test_every_reason_is_given_somewhere():
    rooms = [path for path in SOURCES.rglob("*.py") if path.parent.name != "reasons"]
    text = "".join(path.read_text(encoding="utf-8") for path in rooms)
    assert [token for token in REASONS if f'"{token}"' not in text] == []


def test_a_reason_nobody_explained_is_our_bug():
    with pytest.raises(AssertionError, match="no-such-token"):
        Reason("no-such-token")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason("gang-fits-nowhere", data={"pods": 1, "nodes": 1}), "1 pod fits nowhere on 1 node"),
        (Reason("gang-fits-nowhere", data={"pods": 11, "nodes": 21}), "11 pods fit nowhere on 21 nodes"),
        (
            Reason("devices-busy", data={"free": 0, "total": 1, "need": 1}),
            "0 of 1 devices are free, but a pod needs 1",
        ),
        (Reason("waits-for-devices", data={"devices": 1}), "waits: its smallest plan takes 1 device"),
    ],
)
def test_a_reason_says_one_thing_in_the_singular(reason, said):
    assert str(reason).startswith(said)


def test_a_reason_keeps_its_numbers_beside_its_text():
    reason = Reason("compute-bound", data={"share": 0.93})
    assert reason.to_dict()["data"] == {"share": 0.93}
    assert reason.to_dict()["text"].startswith("93% of the step is computation")


def test_a_sum_is_as_good_as_its_worst_part():
    assert worst(Trust.MEASURED, Trust.ASSUMED, Trust.ANALYTIC) is Trust.ASSUMED
    assert worst(Trust.CALIBRATED, Trust.MEASURED) is Trust.CALIBRATED
    assert worst() is Trust.MEASURED


@dataclass(frozen=True)
class Bounds:
    domains: frozenset[str]


def test_equal_inputs_have_equal_digests_and_others_do_not():
    assert digest({"a": 1, "b": [2.0]}, "x") == digest({"b": [2.0], "a": 1}, "x")
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest(np.array([1.0, 2.0]), np.float64(3)) == digest([1.0, 2.0], 3.0)
    assert digest(Bounds(frozenset({"b", "a"}))) == digest({"domains": ["a", "b"]})


def test_a_digest_is_the_same_in_another_process():
    # The order of a set changes with the hash seed of a process.
    code = "from strata.decision import digest; print(digest({'domains': frozenset('abcdefgh')}))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(printed) == 1


def test_what_has_no_stable_text_is_not_hashed():
    with pytest.raises(TypeError, match="object has no stable text"):
        digest(object())


@pytest.mark.parametrize("key", ["schedules", "zero", "sync.mode", "parallel.context", "parallel.expert"])
def test_what_no_trace_can_say_names_every_key_that_may_have_to_be_given_up(key):
    """A plan with pieces of a sequence was told to choose another schedule, which it had."""
    assert key in REASONS["astra-schedule"].remedy
