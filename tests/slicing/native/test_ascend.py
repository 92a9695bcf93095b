"""Ascend: two layers of one driver, each with its door, and no byte charged twice."""

from __future__ import annotations

import pytest

from tests.slicing.fake_accelerators import GIB, MIB

both_doors = pytest.mark.parametrize("program", ["npu-linked", "npu"])


@pytest.fixture
def npu(accelerators, ledger):
    def call(*words, program="npu", limit=GIB, **more):
        env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(limit), **more)
        done = accelerators.run(program, program, *words, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.splitlines()

    return call


@both_doors
@pytest.mark.parametrize("kind", ["malloc", "align", "cached", "config", "rtmalloc", "rtcached"])
def test_the_second_600_mib_of_a_1_gib_slice_are_refused(npu, program, kind):
    said = npu(f"{kind}:600M", f"{kind}:600M", program=program)
    assert said == [f"{kind} 0", f"{kind} 207001"]


@both_doors
def test_one_malloc_is_charged_once_by_whatever_is_under_it(npu, program):
    said = npu("align:600M", "info", "rtinfo", "free:0", "info", program=program)
    assert said == [
        "align 0",
        f"free {424 * MIB} total {GIB} info 0",
        f"free {424 * MIB} total {GIB} rtinfo 0",
        "free 0",
        f"free {GIB} total {GIB} info 0",
    ]


@both_doors
def test_malloc_takes_32_bytes_more_and_so_another_page(npu, program):
    said = npu("malloc:600M", "held:0", "info", program=program)
    assert said[1:] == [f"bytes {600 * MIB + 32} held 0", f"free {422 * MIB} total {GIB} info 0"]


@both_doors
@pytest.mark.parametrize(("take", "give"), [("malloc", "rtfree"), ("rtmalloc", "free"), ("rtcached", "rtfree")])
def test_taken_at_one_layer_and_given_back_at_the_other(npu, program, take, give):
    said = npu(f"{take}:600M", f"{give}:0", f"{take}:600M", f"{give}:1", "info", program=program)
    assert said[-1] == f"free {GIB} total {GIB} info 0"
    assert all(line.endswith(" 0") for line in said)


@both_doors
@pytest.mark.parametrize(("take", "give"), [("physical", "endphysical"), ("rtphysical", "rtendphysical")])
def test_physical_memory_is_charged_to_the_device_it_is_on(npu, program, take, give):
    said = npu(
        f"{take}:600M:1", "info", f"{take}:600M:1", "device:1", "info", f"{give}:0", "info", program=program
    )
    assert said == [
        f"{take} 0",
        f"free {GIB} total {GIB} info 0",
        f"{take} 207001",
        "device 0",
        f"free {424 * MIB} total {GIB} info 0",
        f"{give} 0",
        f"free {GIB} total {GIB} info 0",
    ]


@both_doors
@pytest.mark.parametrize("order", [("unmap:4096", "endphysical:0"), ("endphysical:0", "unmap:4096")])
def test_physical_memory_is_held_until_it_is_both_freed_and_unmapped(npu, program, order):
    said = npu("physical:600M:0", "map:4096:0", order[0], "info", order[1], "info", program=program)
    assert said[3] == f"free {424 * MIB} total {GIB} info 0"
    assert said[5] == f"free {GIB} total {GIB} info 0"


def test_physical_memory_of_the_host_is_nobodys(npu):
    assert npu("hostphysical:8G", "info") == ["hostphysical 0", f"free {GIB} total {GIB} info 0"]


def test_the_current_device_is_charged(npu):
    said = npu("device:1", "rtmalloc:600M", "device:0", "info", "rtmalloc:600M", "device:1", "rtmalloc:600M")
    assert said[3:] == [f"free {GIB} total {GIB} info 0", "rtmalloc 0", "device 0", "rtmalloc 207001"]


def test_an_unknown_pointer_is_the_drivers_to_judge(npu):
    assert npu("freebad") == ["freebad 107000"]


@pytest.mark.parametrize("code", [207001, 507899])
def test_a_driver_that_fails_gets_its_charge_back(npu, code):
    said = npu("rtmalloc:600M", "info", "malloc:1000M", FAKE_FAIL=f"rtMalloc:1:{code}")
    assert said == [f"rtmalloc {code}", f"free {GIB} total {GIB} info 0", "malloc 0"]


def test_sizes_that_no_device_has(npu):
    assert npu("malloc:18446744073709551615", "info")[0] in ("malloc 107000", "malloc 207001")
