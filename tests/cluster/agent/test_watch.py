"""Faults as they happen: the bus's counters in a tree like /sys, the kernel's trace, NVML's events."""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata.cluster.agent import watch, xid
from strata.cluster.agent.sources import listen_for_xids, watch_errors, watch_presence
from strata.cluster.agent.watch import LOOKS, BusWatch, DeviceFault, Presence

CARD = "0000:3b:00.0"


def add_card(root: Path, address: str = CARD, **files: str | bytes) -> Path:
    folder = root / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    told = {
        "aer_dev_fatal": "DLP 0\nTLP 0\nTOTAL_ERR_FATAL 0\n",
        "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 3\n",
        "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0\n",
        "config": b"\xde\x10\x30\x23",
        **files,
    }
    for name, text in told.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.fixture
def watching() -> Iterator[Callable[..., BusWatch]]:
    with ExitStack() as stack:

        def start(root: Path, *addresses: str) -> BusWatch:
            return stack.enter_context(closing(BusWatch(addresses or (CARD,), root=root)))

        yield start


@pytest.fixture
def seeing() -> Iterator[Callable[..., Presence]]:
    with ExitStack() as stack:
        yield lambda root, *more: stack.enter_context(closing(Presence((CARD, *more), root=root)))


def test_errors_of_before_the_watch_are_nothing_new(tmp_path: Path, watching: Callable[..., BusWatch]) -> None:
    add_card(tmp_path)
    watch = watching(tmp_path)
    assert [watch.poll(float(i)) for i in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    ("kind", "text"), [("fatal", "TOTAL_ERR_FATAL 1\n"), ("nonfatal", "TOTAL_ERR_NONFATAL 4\n")]
)
def test_an_error_is_told_once(tmp_path: Path, watching: Callable[..., BusWatch], kind: str, text: str) -> None:
    folder = add_card(tmp_path)
    watch = watching(tmp_path)
    (folder / f"aer_dev_{kind}").write_text(text)
    assert watch.poll(5.0) == [DeviceFault(5.0, f"aer-{kind}", CARD)]
    assert watch.poll(6.0) == []


def test_corrected_errors_are_left_to_the_slow_loop(tmp_path: Path, watching: Callable[..., BusWatch]) -> None:
    folder = add_card(tmp_path)
    watch = watching(tmp_path)
    (folder / "aer_dev_correctable").write_text("TOTAL_ERR_COR 1000\n")
    assert watch.poll(1.0) == []


def test_a_counter_that_was_restarted_counts_from_nothing(
    tmp_path: Path, watching: Callable[..., BusWatch]
) -> None:
    folder = add_card(tmp_path)
    watch = watching(tmp_path)
    (folder / "aer_dev_nonfatal").write_text("TOTAL_ERR_NONFATAL 0\n")
    assert watch.poll(1.0) == []
    (folder / "aer_dev_nonfatal").write_text("TOTAL_ERR_NONFATAL 1\n")
    assert [one.word for one in watch.poll(2.0)] == ["aer-nonfatal"]


@pytest.mark.parametrize("text", ["", "garbage\n", "TOTAL_ERR_FATAL many\n", "\x00\xff"])
def test_a_counter_that_cannot_be_read_tells_nothing(
    tmp_path: Path, watching: Callable[..., BusWatch], text: str
) -> None:
    folder = add_card(tmp_path)
    watch = watching(tmp_path)
    (folder / "aer_dev_fatal").write_text(text, encoding="latin-1")
    assert watch.poll(1.0) == []


def test_a_card_that_answers_with_all_ones_has_dropped_off(
    tmp_path: Path, seeing: Callable[..., Presence]
) -> None:
    folder = add_card(tmp_path)
    watch = seeing(tmp_path)
    (folder / "config").write_bytes(b"\xff\xff\xff\xff")
    told = [watch.poll(float(i)) for i in range(1, 6)]
    assert told == [[]] * (LOOKS - 1) + [[DeviceFault(float(LOOKS), "lost", CARD)]] + [[]] * (5 - LOOKS)


def test_a_card_that_is_reset_is_not_lost(tmp_path: Path, seeing: Callable[..., Presence]) -> None:
    folder = add_card(tmp_path)
    watch = seeing(tmp_path)
    for i in range(4):
        (folder / "config").write_bytes(b"\xff\xff\xff\xff" if i % LOOKS == 0 else b"\xde\x10")
        assert watch.poll(float(i)) == []


def test_a_card_that_may_sleep_is_not_woken(tmp_path: Path, seeing: Callable[..., Presence]) -> None:
    folder = add_card(tmp_path, config=b"\xff\xff")
    (folder / "power").mkdir()
    (folder / "power/control").write_text("auto\n")
    watch = seeing(tmp_path)
    assert [watch.poll(float(i)) for i in range(4)] == [[]] * 4


def test_a_card_without_counters_or_at_all_is_no_error(tmp_path: Path, watching: Callable[..., BusWatch]) -> None:
    (tmp_path / "bus/pci/devices" / CARD).mkdir(parents=True)
    assert watching(tmp_path, CARD, "0000:ff:00.0").poll(1.0) == []


def add_below_port(root: Path, *addresses: str) -> Path:
    """Cards below one root port, as links like sysfs has them; return the port's count of fatal errors."""
    port = root / "devices/pci0000:3a/0000:3a:00.0"
    for address in addresses:
        (port / address).mkdir(parents=True)
        (port / address / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 0\n")
        (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (root / "bus/pci/devices" / address).symlink_to(port / address)
    count = port / "aer_rootport_total_err_fatal"
    count.write_text("5\n")
    return count


def test_an_error_that_only_the_root_port_counts_is_its_only_cards(
    tmp_path: Path, watching: Callable[..., BusWatch]
) -> None:
    count = add_below_port(tmp_path, CARD)
    watch = watching(tmp_path)
    assert watch.poll(1.0) == []
    count.write_text("6\n")
    assert watch.poll(2.0) == [DeviceFault(2.0, "aer-fatal", CARD)]
    assert watch.poll(3.0) == []


def test_of_two_cards_below_a_root_port_none_is_blamed(tmp_path: Path, watching: Callable[..., BusWatch]) -> None:
    other = "0000:3c:00.0"
    count = add_below_port(tmp_path, CARD, other)
    watch = watching(tmp_path, CARD, other)
    count.write_text("6\n")
    assert watch.poll(2.0) == [DeviceFault(2.0, "aer-fatal", "")]
    count.write_text("none\n")
    assert watch.poll(3.0) == []


def line(name: str, what: str) -> bytes:
    """As Linux 6.1 wrote it when its aer_inject made the errors."""
    return (
        f"   irq/24-aerdrv-46  [000] .....  2.280056: aer_event: {name} PCIe Bus Error: severity={what}\n".encode()
    )


CORRECTED = "Corrected, Receiver Error, TLP Header=Not available"
NONFATAL = "Uncorrected, non-fatal, Poisoned TLP, TLP Header={0x1,0x2,0x3,0x4}"
FATAL = "Fatal, , TLP Header=Not available"


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[watch.AerTrace, int]]:
    """A trace whose pipe is one, and where to write into it; the test closes it."""
    instance = tmp_path / "kernel/debug/tracing/instances/strata"
    (instance / watch.EVENT).parent.mkdir(parents=True)
    os.mkfifo(instance / "trace_pipe")
    started = watch.start_trace(tmp_path)
    assert started is not None
    writer = os.open(instance / "trace_pipe", os.O_WRONLY)
    yield started, writer
    os.close(writer)


def test_the_kernels_trace_tells_of_errors_that_were_not_corrected(traced: tuple[watch.AerTrace, int]) -> None:
    started, writer = traced
    assert (started.instance / watch.EVENT).read_text() == "1"
    assert started.read(0.0) == []
    os.write(writer, line(CARD, CORRECTED) + line(CARD, FATAL) + line("0000:00:1c.0", NONFATAL))
    assert started.read(1.0) == [
        DeviceFault(1.0, "aer-fatal", CARD),
        DeviceFault(1.0, "aer-nonfatal", "0000:00:1c.0"),
    ]
    started.close()


def test_a_line_that_comes_in_two_pieces_is_one(traced: tuple[watch.AerTrace, int]) -> None:
    started, writer = traced
    whole = line(CARD, FATAL)
    os.write(writer, whole[:60])
    assert started.read(1.0) == []
    os.write(writer, whole[60:])
    assert started.read(2.0) == [DeviceFault(2.0, "aer-fatal", CARD)]
    started.close()


def test_without_tracefs_or_rights_there_is_no_trace(tmp_path: Path) -> None:
    assert watch.start_trace(tmp_path) is None


def test_the_bus_is_watched_by_counters_and_trace(tmp_path: Path, traced: tuple[watch.AerTrace, int]) -> None:
    started, writer = traced
    folder = add_card(tmp_path)
    stopped, told = threading.Event(), list[DeviceFault]()

    def put(fault: DeviceFault) -> None:
        told.append(fault)
        if len(told) == 1:
            (folder / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 1\n")
        else:
            stopped.set()

    os.write(writer, line("0000:00:1f.6", FATAL) + line(CARD, NONFATAL))  # the first is a network card
    watch_errors(
        lambda: (CARD,),
        put,
        stopped=stopped,
        clock=lambda: 7.0,
        root=tmp_path,
        poll_s=0.001,
    )
    assert told == [DeviceFault(7.0, "aer-nonfatal", CARD), DeviceFault(7.0, "aer-fatal", CARD)]
    started.close()


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(str(value))
        self.value = value


def test_a_card_that_drops_off_is_told_whatever_vendor_made_it(tmp_path: Path) -> None:
    folder = add_card(tmp_path)
    stopped, told = threading.Event(), list[DeviceFault]()
    looks = iter(range(1000))

    def addresses() -> tuple[str, ...]:
        if next(looks) == 3:
            (folder / "config").write_bytes(b"\xff\xff")
        return (CARD,)

    def put(fault: DeviceFault) -> None:
        told.append(fault)
        stopped.set()

    watch_presence(addresses, put, stopped=stopped, clock=lambda: 7.0, root=tmp_path, poll_s=0.001)
    assert told == [DeviceFault(7.0, "lost", CARD)]


@dataclass
class FakeEvents:
    """Of pynvml what events need. Handles are bytes, as pointers can be; `script`: what waits return."""

    script: list[Any]
    num_cards: int = 2
    without_events: Sequence[int] = ()
    registered: list[tuple[bytes, int]] = field(default_factory=list)
    num_sets: int = 0
    NVMLError: type[Exception] = NVMLError

    def nvmlEventSetCreate(self) -> str:
        self.num_sets += 1
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        self.num_sets -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.num_cards

    def nvmlDeviceGetHandleByIndex(self, i: int) -> bytes:
        return b"card-%d" % i

    def nvmlDeviceGetUUID(self, handle: bytes) -> bytes:
        return b"GPU-" + handle[-1:]

    def nvmlDeviceRegisterEvents(self, handle: bytes, kinds: int, events: str) -> None:
        if int(handle[-1:]) in self.without_events:
            raise NVMLError(3)
        self.registered.append((handle, kinds))

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        card, number = said
        return SimpleNamespace(device=b"card-%d" % card, eventType=xid.CRITICAL, eventData=number)


def test_an_xid_is_told_of_the_card_it_befell() -> None:
    library = FakeEvents([(1, 79), NVMLError(xid.TIMEOUT), (7, 48)])
    watch = xid.XidWatch(library)
    assert library.registered == [(b"card-0", 8), (b"card-1", 8)]
    told = [watch.wait(1.0, clock=lambda: 3.0) for _ in range(3)]
    assert told == [DeviceFault(3.0, "xid-79", "GPU-1"), None, DeviceFault(3.0, "xid-48", "")]
    assert not watch.is_broken


def test_a_card_that_has_no_events_is_left_out() -> None:
    watch = xid.start(lambda: FakeEvents([], without_events=[0]))
    assert watch is not None
    assert len(watch) == 1


@pytest.mark.parametrize("num_cards", [0, 1])
def test_without_a_driver_or_a_card_with_events_there_is_no_watch(num_cards: int) -> None:
    library = FakeEvents([], num_cards=num_cards, without_events=[0])
    assert xid.start(lambda: library) is None
    assert library.num_sets == 0
    assert xid.start(lambda: None) is None


def test_a_driver_that_goes_is_looked_at_and_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.cluster.agent.sources.REST_S", 0.001)
    stopped, told = threading.Event(), list[DeviceFault]()
    first = FakeEvents([NVMLError(xid.TIMEOUT), NVMLError(15)])
    loads: list[Any] = [None, first, None, FakeEvents([(0, 63), NVMLError(15)])]

    def put(fault: DeviceFault) -> None:
        told.append(fault)
        if fault.word:
            stopped.set()

    listen_for_xids(lambda: loads.pop(0), put, stopped=stopped, clock=lambda: 1.0, retry_s=0.001)
    assert told == [DeviceFault(1.0), DeviceFault(1.0, "xid-63", "GPU-0")]
    assert first.num_sets == 0


@pytest.mark.real("pynvml")
def test_pynvml_has_what_events_need() -> None:
    pynvml = importlib.import_module("pynvml")
    assert pynvml.nvmlEventTypeXidCriticalError == xid.CRITICAL
    assert pynvml.NVML_ERROR_TIMEOUT == xid.TIMEOUT
    names = [name for name in dir(FakeEvents) if name.startswith("nvml")]
    assert [name for name in names if not hasattr(pynvml, name)] == []
    # Two pointers to one card are equal as bytes, and only so.
    card = pynvml.struct_c_nvmlDevice_t()
    one, other = ctypes.pointer(card), ctypes.pointer(card)
    assert one != other
    assert bytes(one) == bytes(other)
