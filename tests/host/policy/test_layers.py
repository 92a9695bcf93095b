"""Layers: the policy puts every thread where it belongs, asks for what is there, and starves nobody."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import strata.host.machine.cpus
import strata.host.machine.kernel
import strata.host.threads.observe
from strata.cli.main import cli
from strata.host.machine.kernel import Kernel
from strata.host.policy.codec import dump, read
from strata.host.policy.generate import generate
from strata.host.policy.lint.policy import lint
from strata.host.policy.lint.room import TargetMachine
from strata.host.policy.logic import layer_of
from strata.host.threads.classify import Classified, classify, only
from strata.host.threads.pools import LAYERS
from strata.host.threads.snapshot import Snapshot
from tests.host.builders import TRAINER, of, thread
from tests.host.machine.cpus import simple
from tests.host.policy.hosts import BIG, FEW, FULL, HOST, MACHINES, THREADS
from tests.host.policy.layers_of import parse

NAMES = st.sampled_from(
    ["python", "pt_data_worker", "pt_autograd_3", "a", "worker-7", "st-train", "é" * 7, "grpc_x"]
)
SOME = st.lists(
    st.tuples(
        st.integers(1, 12), NAMES, st.sampled_from(["", "/job", "/job/a", "/sys"]), st.sampled_from(list(LAYERS))
    ),
    max_size=12,
)


def as_proc_has_it(name):
    """What a thread called so is called by /proc, as it is read."""
    return name.replace(b"\0", b"").decode(errors="backslashreplace")


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
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\0"), max_size=9)
            | st.binary(max_size=15).map(as_proc_has_it),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_names_of_any_bytes_make_no_policy_that_is_refused(names):
    some = [
        Classified(thread(100 + n, name), None, "critical" if is_critical else "rest", 0.5, ("x",))
        for n, (name, is_critical) in enumerate(names)
    ]
    policy = generate(BIG, FULL, some)
    found = lint(read(dump(policy.layers)), site=TargetMachine(BIG, FULL))
    assert [str(one.reason) for one in found if one.severity != "note"] == []
    assert policy.missed == ()


@FEW
@given(MACHINES, SOME)
def test_the_policy_passes_our_own_lint_on_any_machine(cpus, some):
    policy = generate(cpus, FULL, crowd(some))
    found = lint(read(dump(policy.layers)), site=TargetMachine(cpus, FULL))
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


def test_what_is_no_job_is_the_rest_when_one_is_asked_for_and_other_jobs_on_accelerators_stay_what_they_are():
    other = thread(9000, "python")
    host = replace(HOST, threads=(*HOST.threads, other), devices={**HOST.devices, 9000: ("/dev/kfd",)})
    asked = {one.thread.tid: one for one in only(classify(host), host, TRAINER)}
    layers = [asked[tid].layer for tid in (TRAINER, 4100, 9000, 900)]
    assert layers == ["critical", "pipeline", "critical", "rest"]
    assert [tid for tid, one in asked.items() if one.is_other_job] == [9000]


def test_a_name_puts_forward_only_within_the_jobs_cgroup_and_user():
    names = ("st-train", "trainer_main", "pt_nccl_watchdg")
    strangers = [thread(8000 + n, name, user=1001, cgroup="/user.slice") for n, name in enumerate(names)]
    contained = f"/docker/{'ab' * 32}"
    boxed = [thread(8100 + n, name, cgroup=contained) for n, name in enumerate(names)]
    born_later = [thread(8200, "st-train", cgroup="/job.slice/run-1"), thread(8300, "st-train", user=1001)]
    host = replace(HOST, threads=(*HOST.threads, *strangers, *boxed))
    layers = generate(BIG, FULL, classify(host)).layers
    taken = [layer_of(one, layers).name for one in (*strangers, *boxed, *born_later)]
    assert taken == ["rest"] * 6 + ["critical", "rest"]


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


@pytest.fixture
def command(monkeypatch):
    monkeypatch.setattr(strata.host.machine.cpus, "probe", lambda: BIG)
    monkeypatch.setattr(strata.host.machine.kernel, "probe", lambda: FULL)
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
