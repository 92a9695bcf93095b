"""What the machine and its kernel offer, read from files."""

from __future__ import annotations

import pytest

import strata.host.machine.cpus
import strata.host.machine.kernel
import strata.host.threads.observe
from strata.host.machine.cpus import probe
from strata.host.machine.kernel import Kernel
from strata.host.policy.plain import plain
from tests.host.policy.hosts import BIG, THREADS


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
        if cpu == 3:
            write(tmp_path, f"{base}/cpu{cpu}/cpufreq/scaling_max_freq", "2000000")
    write(tmp_path, "devices/system/node/node0/cpulist", "0-1")
    write(tmp_path, "devices/system/node/node1/cpulist", "2-3")
    cpus = probe(tmp_path)
    assert (cpus.numbers, cpus.has_smt) == ((0, 1, 2, 3), True)
    assert cpus.nodes == cpus.llcs == {0: (0, 1), 1: (2, 3)}
    assert {(cpu.governor, cpu.floor_hz, cpu.top_hz) for cpu in cpus.all} == {
        ("schedutil", 8e8, 3.2e9),
        ("schedutil", 8e8, 2e9),  # no floor above what it may do
    }


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
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert strata.host.machine.kernel.probe(tmp_path) == Kernel(
        "/sys/fs/cgroup",
        frozenset({"cpuset", "cpu", "io", "memory"}),
        True,
        (0, 1),
        (0, 1),
        True,
        {24: (0, 1, 2, 3)},
        True,
    )
    assert strata.host.machine.kernel.probe(tmp_path / "nothing") == Kernel()


@pytest.mark.parametrize("caps", ["MB:0=2048;1=2048", "    MB:0=4294967295"])
def test_bandwidth_is_not_capped_to_a_share_where_caps_are_absolute(tmp_path, caps):
    # AMD counts in eighths of a GB/s, and with mba_MBps the kernel in MB/s: 50 would stall the pipeline.
    write(tmp_path, "sys/fs/resctrl/schemata", caps)
    found = plain(BIG, strata.host.machine.kernel.probe(tmp_path), THREADS)
    assert not [step for step in found.steps if "resctrl" in step.path]
    assert "resctrl is not mounted, or caps no bandwidth in percents" in {one.why for one in found.left_out}
