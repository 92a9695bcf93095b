"""The policy without sched_ext: each step where the kernel offers it, and why not where it does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.fleet.local import cpu_list
from strata.host.apply.policy import load
from strata.host.apply.refuse import Residents, refusals
from strata.host.machine.cpus import Cpus, show
from strata.host.machine.kernel import Kernel
from strata.host.policy.codec import dump
from strata.host.policy.generate import generate
from strata.host.policy.plain import plain
from strata.host.policy.split import split
from strata.host.threads.classify import classify, only
from strata.host.threads.snapshot import Snapshot
from tests.host.builders import TRAINER, thread
from tests.host.machine.cpus import simple
from tests.host.policy.hosts import BIG, FEW, FULL, HOST, MACHINES, THREADS

GROUPS = st.sampled_from(["", "/a", "/a/b", "/c/d", "/user.slice/x", "/job.slice/other", "/../h", r"/a b/\x2d.\n"])
CROWDS = st.lists(st.tuples(GROUPS, st.integers(0, 4)), max_size=12)


def steps(act, found, layer=None):
    return {one.path: one.value for one in found.steps if one.act == act and layer in (None, one.layer)}


@FEW
@given(MACHINES)
def test_a_split_is_disjoint_whole_cores_and_leaves_half_to_the_others(cpus):
    parts = split(cpus, THREADS)
    if not parts.critical:
        assert len(cpus.cores) < 4
        return
    assert set(parts.critical) | set(parts.shared) == set(cpus.numbers)
    assert not set(parts.critical) & set(parts.shared)
    assert set(parts.support) <= set(parts.shared)
    assert parts.support
    assert all(not set(core) & set(parts.critical) or set(core) <= set(parts.critical) for core in cpus.cores)
    assert 2 * len(parts.critical) <= len(cpus.numbers) + 1


def test_critical_threads_get_cpus_beside_their_gpu_and_not_the_first():
    parts = split(BIG, THREADS)
    assert set(parts.critical) <= set(range(1, 8))
    assert 0 in parts.shared


def test_threads_of_one_process_get_threaded_cgroups_by_layer():
    found = plain(BIG, FULL, THREADS)
    base = "/sys/fs/cgroup/job.slice/run-1"
    written = steps("write", found)
    assert written[f"{base}/strata-critical/cgroup.type"] == "threaded"
    assert written[f"{base}/strata-critical/cpu.weight"] == "1000"
    assert written[f"{base}/strata-critical/cpuset.mems"] == "0"
    assert written["/sys/fs/cgroup/job.slice/cgroup.subtree_control"] == "+cpu +cpuset"
    made = [one.path for one in found.steps if one.act == "mkdir"]
    assert made.index(f"{base}/strata-critical") < made.index(f"{base}/strata-pipeline")
    order = [(one.act, one.path.rsplit("/", 1)[-1]) for one in found.steps if "strata-critical" in one.path]
    assert order[:4] == [("mkdir", "strata-critical"), ("write", "cgroup.type"), ("write", "cpu.weight"),
                         ("write", "cpuset.cpus")]  # fmt: skip
    attached = {one.value for one in found.steps if one.path == f"{base}/strata-critical/cgroup.threads"}
    assert attached == {"4000", "4001", "4002", "4003", "4004"}


def test_what_belongs_to_no_job_runs_when_nobody_else_wants_to_but_daemons_and_shells_do_not_starve():
    batch, sshd = thread(8000, "make", cgroup="/batch.slice/x"), thread(8001, "sshd", cgroup="/system.slice/ssh")
    host = replace(HOST, threads=(*HOST.threads, batch, sshd))
    written = steps("write", plain(BIG, FULL, classify(host)), "rest")
    assert written["/sys/fs/cgroup/batch.slice/cpu.idle"] == "1"
    assert written["/sys/fs/cgroup/system.slice/cpu.weight"] == "10"
    assert "/sys/fs/cgroup/system.slice/cpu.idle" not in written
    assert written["/sys/fs/cgroup/batch.slice/cpuset.cpus"] == show(split(BIG, THREADS).shared)


def test_a_user_with_nothing_elsewhere_is_weighted_and_not_idled():
    pod = thread(8000, "serve", cgroup="/kubepods.slice/pod-1", user=1000)
    host = replace(HOST, threads=(*HOST.threads, pod))
    written = steps("write", plain(BIG, FULL, classify(host)), "rest")
    assert written["/sys/fs/cgroup/kubepods.slice/cpu.weight"] == "10"
    assert "/sys/fs/cgroup/kubepods.slice/cpu.idle" not in written
    shell = thread(8001, "bash", cgroup="/user.slice/1000", user=1000)
    both = replace(host, threads=(*host.threads, shell))
    assert (
        steps("write", plain(BIG, FULL, classify(both)), "rest")["/sys/fs/cgroup/kubepods.slice/cpu.idle"] == "1"
    )


@FEW
@given(MACHINES, CROWDS)
def test_apply_reads_every_policy_of_ours_and_refuses_none(tmp_path_factory, cpus, crowd):
    threads = [thread(9000 + n, "x", cgroup=cgroup, user=user) for n, (cgroup, user) in enumerate(crowd)]
    found = plain(cpus, FULL, classify(replace(HOST, threads=(*HOST.threads, *threads))))
    policy = tmp_path_factory.mktemp("policy") / "plain.json"
    policy.write_text(json.dumps({"steps": [step.to_dict() for step in found.steps]}))
    assert load(str(policy)) == found.steps
    groups = {}
    for one in (*HOST.threads, *threads):
        groups.setdefault(one.user, set()).add(one.cgroup or "/")
    here = Residents(frozenset(cpus.numbers), frozenset(FULL.memory_nodes), groups)
    assert refusals(found.steps, here) == ()


def test_the_first_process_keeps_its_nice_value_which_all_it_starts_would_inherit():
    host = replace(HOST, threads=(*HOST.threads, thread(1, "init", run_s=90.0)))
    assert "/proc/1/task/1" not in steps("nice", plain(BIG, FULL, classify(host)))


def test_a_job_outside_of_this_cgroup_namespace_is_said_to_be():
    # A container that shares the host's processes but not its cgroups.
    hidden = tuple(replace(one, cgroup=f"/../..{one.cgroup}") for one in HOST.threads)
    host = replace(HOST, threads=hidden)
    found = plain(BIG, FULL, classify(host))
    assert not [step for step in found.steps if "cgroup" in step.path]
    assert "cgroups of threads outside of this cgroup namespace" in {one.what for one in found.left_out}
    said = json.dumps(dump(generate(BIG, FULL, classify(host)).layers))
    assert "Cgroup" not in said


def test_nice_values_say_who_matters_and_undo_nobodys_own_choice():
    hog, polite = thread(8000, "hog", run_s=90.0), thread(8001, "polite", run_s=90.0, nice=19)
    brief = thread(8002, "cc1", run_s=0.9, age_s=1.0)
    trainer = replace(HOST.threads[0], nice=-15)
    host = replace(HOST, threads=(trainer, *HOST.threads[1:], hog, polite, brief))
    nice = steps("nice", plain(BIG, FULL, classify(host)))
    assert nice["/proc/4000/task/4001"] == "-10"
    assert nice["/proc/4000/task/4031"] == "5"
    assert nice["/proc/8000/task/8000"] == "10"
    left = (8001, 8002, 4000, 4100)
    assert not {f"/proc/{pid}/task/{pid}" for pid in left} & nice.keys()


def test_affinity_follows_the_gpus_node_but_not_over_an_applications_own_pins():
    pinned = tuple(replace(one, cpus=(3,)) if one.tid == 4001 else one for one in HOST.threads)
    found = plain(BIG, FULL, classify(replace(HOST, threads=pinned)))
    near = steps("affinity", found)
    assert near["/proc/4000/task/4000"] == show(found.split.critical)
    assert "/proc/4000/task/4031" not in near
    assert not set(cpu_list(near["/proc/4100/task/4100"])) & set(found.split.critical)
    assert "/proc/4000/task/4001" not in near
    assert "pinned by the application itself" in {one.why for one in found.left_out}
    assert steps("migrate", found) == {"/proc/4000": "0", "/proc/4100": "0"}


def test_interrupts_leave_the_critical_cpus():
    found = plain(BIG, FULL, THREADS)
    moved = {path: set(cpu_list(value)) for path, value in steps("write", found).items() if "/irq/" in path}
    assert "/proc/irq/24/smp_affinity_list" in moved
    assert "/proc/irq/25/smp_affinity_list" not in moved
    assert all(cpus and not cpus & set(found.split.critical) for cpus in moved.values())


def test_critical_cpus_get_a_floor_of_their_top_frequency_where_the_kernel_sets_one():
    slow = Cpus(tuple(replace(cpu, governor="schedutil", floor_hz=8e8, top_hz=3.2e9) for cpu in BIG.all))
    found = plain(slow, FULL, THREADS)
    floors = {path: value for path, value in steps("write", found).items() if "scaling_min_freq" in path}
    assert len(floors) == len(found.split.critical)
    assert set(floors.values()) == {"3200000"}
    assert "frequency floor" in {one.what for one in plain(BIG, FULL, THREADS).left_out}


def test_the_pipelines_memory_bandwidth_is_capped_in_a_group_of_its_own():
    found = plain(BIG, FULL, THREADS)
    assert steps("write", found)["/sys/fs/resctrl/strata-pipeline/schemata"] == "MB:0=50;1=50"
    tasks = [one.value for one in found.steps if one.path == "/sys/fs/resctrl/strata-pipeline/tasks"]
    assert {"4100", "4101", "4010"} <= set(tasks)
    assert "4000" not in tasks


def test_a_kernel_that_offers_nothing_leaves_nice_values_and_says_what_is_left_out():
    found = plain(simple(2), Kernel(), THREADS)
    assert {one.act for one in found.steps} == {"nice"}
    assert {one.what for one in found.left_out} == {
        "cpu.weight, cpu.idle",
        "cpuset.cpus, cpuset.mems",
        "memory beside the GPU",
        "interrupts off critical CPUs",
        "frequency floor",
        "memory bandwidth of the pipeline",
    }


@pytest.mark.parametrize(
    ("controller", "theirs", "others"),
    [("cpu", "cpu.weight", "cpuset.cpus"), ("cpuset", "cpuset.cpus", "cpu.weight")],
)
def test_each_controller_is_used_also_where_the_other_is_not_there(controller, theirs, others):
    one_of_them = replace(FULL, controllers=frozenset({controller, "memory"}))
    found = plain(BIG, one_of_them, THREADS)
    written = steps("write", found)
    assert {value for path, value in written.items() if "subtree_control" in path} == {f"+{controller}"}
    names = {path.rpartition("/")[2] for path in written}
    assert theirs in names
    assert not {others, "cpu.idle" if controller == "cpuset" else "cpuset.mems"} & names
    (missing,) = {"cpu", "cpuset"} - {controller}
    assert f"no controller {missing} there" in {one.why for one in found.left_out}


def test_irqbalance_is_told_to_move_interrupts_back():
    host = replace(HOST, threads=(*HOST.threads, thread(700, "irqbalance")))
    found = plain(BIG, FULL, classify(host))
    assert f"IRQBALANCE_BANNED_CPULIST={show(found.split.critical)}" in str(found.left_out)
    assert "IRQBALANCE" not in str(plain(BIG, FULL, THREADS).left_out)


def test_a_host_without_a_job_is_left_alone():
    found = plain(BIG, FULL, classify(Snapshot((thread(1, "bash"), thread(2, "make", run_s=99.0)))))
    assert (found.steps, [one.why for one in found.left_out]) == ((), ["no thread of a job was found"])


@FEW
@given(MACHINES, st.sampled_from([0, 1]))
def test_an_affinity_lies_within_the_cpuset_and_comes_after_it(cpus, node):
    host = replace(HOST, gpus=tuple(replace(gpu, node=node) for gpu in HOST.gpus))
    found = plain(cpus, FULL, classify(host))
    sets = {}
    for step in found.steps:
        if step.path.endswith("cpuset.cpus"):
            sets[step.layer] = set(cpu_list(step.value))
        if step.act == "affinity":
            assert set(cpu_list(step.value)) <= sets.get(step.layer, set(cpus.numbers))
    assert all(sets.values())


def demoted(found):
    return {one.path for one in found.steps if one.act == "nice"}


def test_the_threads_of_a_co_tenant_on_accelerators_are_left_as_they_are():
    # The launch thread of B got nice 10, since it did not descend from A; its cgroup became idle.
    b = thread(9000, "python", cgroup="/other.slice/b", user=7)
    worker, hog = thread(9001, "loader", ppid=9000, cgroup="/other.slice/b", user=7), thread(8000, "hog")
    host = replace(
        HOST, threads=(*HOST.threads, b, worker, hog), devices={**HOST.devices, 9000: ("/dev/nvidia1",)}
    )
    host = replace(host, gpus=())
    found = plain(BIG, FULL, only(classify(host), host, TRAINER))
    assert not {path for path in demoted(found) if path.startswith(("/proc/9000", "/proc/9001"))}
    assert not [one for one in found.steps if "/other.slice" in one.path]
    assert "/proc/8000/task/8000" in demoted(found)
    # Nor is A put before B: where they meet on a CPU, they are alike.
    assert not [one for one in found.steps if one.act == "nice" and one.value.startswith("-")]
    assert any(one.what == "other jobs on accelerators: 9000" for one in found.left_out)


def test_what_starts_jobs_of_others_is_not_reniced():
    names = ("kubelet", "containerd-shim", "slurmstepd", "raylet", "sshd", "bash", "torchrun")
    host = replace(HOST, threads=(*HOST.threads, *(thread(8000 + n, name) for n, name in enumerate(names))))
    assert not {path for path in demoted(plain(BIG, FULL, classify(host))) if path.startswith("/proc/80")}


def test_a_name_alone_puts_nobody_forward():
    liar = thread(8000, "st-train", user=1001, cgroup="/user.slice")
    found = plain(BIG, FULL, classify(replace(HOST, threads=(*HOST.threads, liar))))
    assert not [one for one in found.steps if "8000" in (one.path.split("/")[-1], one.value)]
    assert any("8000" in one.what for one in found.left_out)
