"""Layers: the policy puts every thread where it belongs, asks for what is there, and starves nobody."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import strata.host.cpus
import strata.host.kernel
import strata.host.threads.observe
from host_builders import TRAINER, of, thread, training_host
from strata.cli.main import cli
from strata.fleet.local import cpu_list
from strata.host.cpus import Cpus, probe, show, simple
from strata.host.kernel import Kernel
from strata.host.layers.codec import dump, parse, read
from strata.host.layers.generate import generate
from strata.host.layers.matching import layer_of
from strata.host.layers.plain import plain
from strata.host.layers.split import split
from strata.host.lint.policy import lint
from strata.host.lint.room import Site
from strata.host.threads.classify import Classified, classify
from strata.host.threads.job import only
from strata.host.threads.pools import LAYERS
from strata.host.threads.snapshot import Snapshot

FULL = Kernel(
    cgroup_root="/sys/fs/cgroup",
    controllers=frozenset({"cpu", "cpuset", "memory"}),
    has_cpu_idle=True,
    memory_nodes=(0, 1),
    resctrl_domains=(0, 1),
    has_bandwidth_monitor=True,
    irqs={24: tuple(range(16)), 25: (0,), 26: (2, 3)},
)
HOST = training_host()
THREADS = classify(HOST)
BIG = simple(16, nodes=2)


def steps(act, found, layer=None):
    return {one.path: one.value for one in found.steps if one.act == act and layer in (None, one.layer)}


NAMES = st.sampled_from(
    ["python", "pt_data_worker", "pt_autograd_3", "a", "worker-7", "st-train", "é" * 7, "grpc_x"]
)
SOME = st.lists(
    st.tuples(
        st.integers(1, 12), NAMES, st.sampled_from(["", "/job", "/job/a", "/sys"]), st.sampled_from(list(LAYERS))
    ),
    max_size=12,
)
MACHINES = st.builds(simple, st.integers(1, 64), nodes=st.integers(1, 4), smt=st.booleans())
FEW = settings(max_examples=60, deadline=None)


def crowd(some):
    """Threads 100, 101 … of a dozen processes, of any layer whatever their names say."""
    return [
        Classified(
            replace(thread(100 + n, name, pid=pid, process=f"p{pid}"), cgroup=cgroup), None, layer, 0.5, ("x",)
        )
        for n, (pid, name, cgroup, layer) in enumerate(some)
    ]


@FEW
@given(SOME, st.booleans())
def test_every_thread_falls_into_its_own_layer_or_is_told_to_be_missed(some, has_nvidia):
    threads = crowd(some)
    policy = generate(BIG, Kernel(has_nvidia=has_nvidia), threads)
    missed = {one.tid for one in policy.missed}
    for one in threads:
        taken = layer_of(one.thread, policy.layers)
        assert taken is not None
        assert (taken.name == one.layer) == (one.thread.tid not in missed)


def test_the_training_hosts_threads_all_fall_into_their_layers():
    policy = generate(BIG, FULL, THREADS)
    assert policy.missed == ()
    assert {one.thread.tid: layer_of(one.thread, policy.layers).name for one in THREADS} == {
        one.thread.tid: one.layer for one in THREADS
    }


@FEW
@given(MACHINES, SOME)
def test_the_policy_passes_our_own_lint_on_any_machine(cpus, some):
    policy = generate(cpus, FULL, crowd(some))
    found = lint(read(dump(policy.layers)), site=Site(cpus, FULL))
    assert [str(one.reason) for one in found if one.severity != "note"] == []


def test_the_policy_has_the_seeds_four_layers_and_survives_a_round_trip():
    policy = generate(BIG, FULL)
    assert [layer.name for layer in policy.layers] == list(LAYERS)
    kinds = [type(layer.kind).__name__ for layer in policy.layers]
    assert kinds == ["Grouped", "Grouped", "Confined", "Open"]
    assert parse(json.loads(json.dumps(dump(policy.layers)))) == policy.layers


def test_probes_of_the_nvidia_driver_are_asked_for_only_where_it_is():
    with_driver = generate(BIG, Kernel(has_nvidia=True))
    assert with_driver.arguments == ("--enable-gpu-support", "--enable-gpu-affinitize")
    assert generate(simple(8), Kernel(has_nvidia=True)).arguments == ("--enable-gpu-support",)
    without = generate(BIG, Kernel())
    assert without.arguments == ()
    assert "UsedGpu" not in json.dumps(dump(without.layers))


def test_too_many_processes_for_the_blocks_are_told():
    many = [
        Classified(
            thread(1000 + n, "python", process="python"), "kernel-launch", "critical" if n % 2 else "rest", 0.9
        )
        for n in range(100)
    ]
    policy = generate(BIG, Kernel(), many)
    assert len(policy.layers[0].matches) == 32
    assert 0 < len(policy.missed) < 50
    assert all(one.tid % 2 for one in policy.missed)


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
        "cpu.weight, cpu.idle, cpuset",
        "memory beside the GPU",
        "interrupts off critical CPUs",
        "frequency floor",
        "memory bandwidth of the pipeline",
    }
    old = replace(FULL, controllers=frozenset({"cpu"}))
    assert "no controller cpuset there" in {one.why for one in plain(BIG, old, THREADS).left_out}


def test_a_host_without_a_job_is_left_alone():
    found = plain(BIG, FULL, classify(Snapshot((thread(1, "bash"), thread(2, "make", run_s=99.0)))))
    assert (found.steps, [one.why for one in found.left_out]) == ((), ["no thread of a job was found"])


def test_the_other_jobs_of_a_host_are_the_rest_when_one_is_asked_for():
    other = thread(9000, "python")
    host = replace(HOST, threads=(*HOST.threads, other), devices={**HOST.devices, 9000: ("/dev/kfd",)})
    asked = {one.thread.tid: one.layer for one in only(classify(host), host, TRAINER)}
    assert (asked[TRAINER], asked[4100], asked[9000], asked[900]) == ("critical", "pipeline", "rest", "rest")


def test_a_job_without_an_accelerator_has_its_first_thread_for_a_critical_one():
    leader, shell, child = thread(10, "python"), thread(20, "bash"), thread(11, "tool", ppid=10)
    host = Snapshot((leader, of(leader, 12, "helper"), child, shell))
    found = only(classify(host), host, 10)
    assert {one.thread.tid: one.layer for one in found} == {
        10: "critical", 12: "pipeline", 11: "pipeline", 20: "rest",
    }  # fmt: skip
    assert found[0].confidence == 0.5
    policy = generate(BIG, Kernel(), found)
    assert {one.thread.tid: layer_of(one.thread, policy.layers).name for one in found} == {
        one.thread.tid: one.layer for one in found
    }


def test_a_job_with_a_critical_thread_keeps_it_as_the_only_sign():
    found = {one.thread.tid: one for one in only(THREADS, HOST, TRAINER)}
    assert found[TRAINER].evidence == ("the driver lists its process on GPU 0, and it is the first thread",)
    assert found[4033].layer == "pipeline"


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


def test_cpus_are_read_from_sysfs(tmp_path):
    base = "devices/system/cpu"
    write(tmp_path, f"{base}/online", "0-3")
    for cpu in range(4):
        first = cpu - cpu % 2
        write(tmp_path, f"{base}/cpu{cpu}/topology/core_cpus_list", f"{first}-{first + 1}")
        write(tmp_path, f"{base}/cpu{cpu}/cache/index0/shared_cpu_list", f"{cpu}")
        write(tmp_path, f"{base}/cpu{cpu}/cache/index3/shared_cpu_list", f"{first}-{first + 1}")
        write(tmp_path, f"{base}/cpu{cpu}/cpufreq/scaling_governor", "schedutil")
        write(tmp_path, f"{base}/cpu{cpu}/cpufreq/scaling_min_freq", "800000")
        write(tmp_path, f"{base}/cpu{cpu}/cpufreq/cpuinfo_max_freq", "3200000")
    write(tmp_path, "devices/system/node/node0/cpulist", "0-1")
    write(tmp_path, "devices/system/node/node1/cpulist", "2-3")
    cpus = probe(tmp_path)
    assert (cpus.numbers, cpus.has_smt) == ((0, 1, 2, 3), True)
    assert cpus.nodes == cpus.llcs == {0: (0, 1), 1: (2, 3)}
    assert {(cpu.governor, cpu.floor_hz, cpu.top_hz) for cpu in cpus.all} == {("schedutil", 8e8, 3.2e9)}


def test_a_box_that_shows_nothing_but_cpus_has_one_node_and_one_cache(tmp_path):
    write(tmp_path, "devices/system/cpu/online", "0-1023")
    cpus = probe(tmp_path)
    assert (len(cpus.numbers), len(cpus.nodes), len(cpus.llcs), cpus.has_smt) == (1024, 1, 1, False)


def test_what_the_kernel_offers_is_read_from_its_files(tmp_path):
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory")
    write(tmp_path, "sys/fs/cgroup/system.slice/cpu.idle", "0")
    write(tmp_path, "sys/fs/resctrl/schemata", "    MB:0=100;1=100\n    L3:0=7ff;1=7ff")
    write(tmp_path, "sys/fs/resctrl/mon_data/mon_L3_00/mbm_total_bytes", "1")
    write(tmp_path, "sys/devices/system/node/has_memory", "0-1")
    write(tmp_path, "proc/irq/24/smp_affinity_list", "0-3")
    write(tmp_path, "proc/irq/default_smp_affinity", "f")
    write(tmp_path, "sys/kernel/sched_ext/state", "disabled")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert strata.host.kernel.probe(tmp_path) == Kernel(
        "/sys/fs/cgroup",
        frozenset({"cpuset", "cpu", "io", "memory"}),
        True,
        (0, 1),
        (0, 1),
        True,
        {24: (0, 1, 2, 3)},
        "disabled",
        True,
    )
    assert strata.host.kernel.probe(tmp_path / "nothing") == Kernel()


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(strata.host.cpus, "probe", lambda: BIG)
    monkeypatch.setattr(strata.host.kernel, "probe", lambda: FULL)
    monkeypatch.setattr(strata.host.threads.observe, "observe", lambda: HOST)
    return lambda *arguments: CliRunner().invoke(cli, ["host", "layers", *arguments])


def test_the_command_writes_a_file_that_lint_takes(command, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(command("-o", "json").stdout)
    result = CliRunner().invoke(cli, ["host", "lint", str(file), "-o", "json"])
    assert result.exit_code == 0
    assert {one["severity"] for one in json.loads(result.stdout)["findings"]} <= {"note"}


def test_the_command_says_in_words_what_it_would_do(command):
    shown = command().stdout
    assert "1. critical" in shown
    assert "run: scx_layered f:policy.json" in shown
    steps_shown = json.loads(command("--plain", "-o", "json").stdout)
    assert set(steps_shown["steps"][0]) == {"act", "path", "value", "layer", "why"}
    assert "left out: frequency floor: the kernel has no cpufreq here" in command("--plain").stdout


def test_a_process_that_is_not_there_has_no_policy(command):
    assert command("--pid", "99999").exception.exit_code == 2
    assert command("--pid", str(TRAINER)).exit_code == 0


def test_a_process_of_many_threads_needs_few_blocks():
    leader = thread(10, "python", cgroup="/job")
    many = [of(leader, 100 + n, f"weird{n}") for n in range(500)]
    found = classify(Snapshot((leader, *many), {10: ("/dev/kfd",)}))
    assert generate(BIG, Kernel(), found).missed == ()


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
