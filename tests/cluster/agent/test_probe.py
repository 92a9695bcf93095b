"""A device's benchmark in a process of its own: what is asked for, what is read, what cannot be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

import pytest

from strata.cluster.agent import probe
from strata.cluster.agent.benchmark import Timing
from strata.errors import MissingPart, StrataError
from strata.fleet.discovery import tools
from strata.fleet.fingerprint import Device, Probe


def device(i: int, vendor: str, uuid: str = "") -> Device:
    return Device(i, uuid or f"n/{vendor}-{i}", "card", vendor, 1.0)


def answering(text: str | None, asked: list[list[str]] | None = None) -> Callable[[Sequence[str]], str | None]:
    def run(command: Sequence[str]) -> str | None:
        if asked is not None:
            asked.append(list(command))
        return text

    return run


@pytest.mark.parametrize(
    ("devices", "variable", "names"),
    [
        ([device(3, "NVIDIA", "GPU-3")], "CUDA_VISIBLE_DEVICES=GPU-3", ["torch", "cuda:0"]),
        (
            [device(1, "Huawei"), device(5, "Huawei")],
            "ASCEND_RT_VISIBLE_DEVICES=1,5",
            ["torch_npu", "npu:0", "npu:1"],
        ),
        ([device(2, "Moore Threads")], "MUSA_VISIBLE_DEVICES=2", ["torch_musa", "musa:0"]),
    ],
)
def test_only_the_devices_themselves_are_shown_to_torch(
    devices: list[Device], variable: str, names: list[str]
) -> None:
    asked: list[list[str]] = []
    said = probe.measure("links", devices, run=answering('a library says hello\n{"timings": []}\n', asked))
    assert said == {"timings": []}
    assert asked == [["env", variable, sys.executable, "-m", "strata.cluster.agent.probe", "links", *names]]


def test_a_vendor_nobody_knows_how_to_ask_is_an_error() -> None:
    with pytest.raises(StrataError, match="no benchmark is known for devices of Biren"):
        probe.measure("device", [device(0, "Biren")], run=answering("{}"))


@pytest.mark.parametrize("text", ["", "Segmentation fault", "[1, 2]", '{"timings": ['])
def test_a_benchmark_that_prints_no_result_is_an_error(text: str) -> None:
    with pytest.raises(StrataError, match="benchmark of 0: it printed no result"):
        probe.measure("device", [device(0, "Huawei")], run=answering(text))


def test_what_is_printed_is_read() -> None:
    said = json.loads('{"timings": [{"what": "link", "work": 2.0, "seconds": [1.0, 0.5], "pair": [0, 1]}]}')
    assert probe.timings_of(said) == [Timing("link", 2.0, (1.0, 0.5), (0, 1))]
    assert probe.probe_of({"rate_flops": 1.0, "power_w": None}, 5.0) == Probe(5.0, 1.0)


@pytest.mark.real("torch")
def test_without_a_plug_in_the_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["probe", "torch_of_nobody", "cpu"]) == MissingPart.exit_code
    assert "the benchmark needs t" in capsys.readouterr().out


@pytest.mark.real("torch")
def test_a_real_product_has_a_rate_and_the_power_that_was_drawn() -> None:
    times = iter([0.0, 1.0, 2.0, 4.0])
    rate, power_w = probe.time_probe("cpu", seconds=3.0, size=16, power=lambda: 250.0, clock=lambda: next(times))
    assert (rate, power_w) == (2 * 8 * 2.0 * 16**3 / 4.0, 250.0)


@pytest.mark.real("torch")
def test_a_device_that_is_not_there_is_a_line_of_the_process_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert probe.main(["probe", "torch", "cuda:99"]) == 1
    assert capsys.readouterr().out.startswith("benchmark: cuda:99: ")


def test_a_process_that_ends_in_an_error_is_an_error() -> None:
    def failing(command: Sequence[str]) -> str | None:
        raise tools.ToolFailed("env: ended with 1, saying 'benchmark: cuda:0: out of memory'")

    with pytest.raises(StrataError, match="out of memory"):
        probe.measure("probe", [device(0, "NVIDIA", "GPU-0")], run=failing)
