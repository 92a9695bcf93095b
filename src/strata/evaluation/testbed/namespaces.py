"""Domains as network namespaces, each pair joined by a link of a given bandwidth and latency.

Every domain has one address, on all its links; nothing routes out of the namespaces. Bandwidth is a token bucket
(tc tbf) at each end. Latency is netem where the kernel has it, else a `relay` process behind two TUN devices. A
`reaper` process removes everything at the end, also when this process is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import IO, Final, Self

from strata.errors import MissingPart

_MTU: Final = 9000  # few packets for the relay to handle
_BURST_S: Final = 3e-4  # what a rested link sends at once: as little as the kernel's timers allow
_QUEUE_BYTES: Final = 16_000_000  # nothing is dropped: the sender's socket is smaller

# Windows wide open from the first byte: the step is to wait for the link, not for TCP to find out how fast it is.
# No link loses a packet, so TCP is to take none for lost however long the queue of ten connections gets.
_ROUTE: Final = ("initcwnd", "2000", "initrwnd", "2000", "rto_min", "5s")
_SETTINGS: Final = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv4/tcp_early_retrans": "0",
    "net/ipv4/tcp_limit_output_bytes": str(4 * _MTU),
    "net/ipv4/tcp_rmem": "4096 16000000 32000000",
    "net/ipv4/tcp_wmem": "4096 16000000 32000000",
}


@dataclass(frozen=True, slots=True)
class LinkShape:
    """What every link has, in each direction; `latency_s` is one-way."""

    bandwidth_bytes_per_s: float
    latency_s: float

    def tbf(self) -> list[str]:
        """Return the token bucket in tc's words."""
        rate = f"{round(self.bandwidth_bytes_per_s * 8)}bit"
        burst = max(_MTU + 100, round(self.bandwidth_bytes_per_s * _BURST_S))
        return ["tbf", "rate", rate, "burst", str(burst), "limit", str(_QUEUE_BYTES)]

    def netem(self) -> list[str]:
        """Return the delay in tc's words."""
        return ["netem", "delay", f"{round(self.latency_s * 1e6)}us", "limit", "100000"]


def check_parts() -> None:
    """Raise MissingPart where this machine or this user cannot make namespaces and shape links."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise MissingPart(f"the testbed needs {tool}, which is not installed", hint="apt-get install iproute2")
    if os.geteuid() != 0:
        raise MissingPart(
            "the testbed makes network namespaces, for which it must be root", hint="sudo strata ..."
        )


class Namespaces:
    """`domains` namespaces and the links between them, for as long as the `with` block runs."""

    def __init__(self, domains: int, *, has_latency: bool) -> None:
        self.names = tuple(f"strata-{os.getpid()}-{index}" for index in range(domains))
        self._pairs = tuple(combinations(range(domains), 2))
        self._has_latency, self._has_netem = has_latency, False
        self._relays: list[subprocess.Popen[str]] = []
        self._reaper: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", "strata.evaluation.testbed.reaper", *self.names],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            for name in self.names:
                _do("ip", "netns", "add", name)
                _do("ip", "-n", name, "link", "set", "lo", "up")
                self._set(name)
            self._has_netem = self._has_latency and self._probe_netem()
            for here, there in self._pairs:
                self._join(here, there)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        if self._reaper is not None:
            self._reaper.communicate("done\n")
        for relay in self._relays:
            relay.communicate()

    def shape(self, shape: LinkShape) -> None:
        """Give every link this bandwidth and latency, from the next packet on."""
        self.shape_links(shape, self._ends())
        for relay in self._relays:
            _pipe(relay.stdin).write(f"{shape.latency_s}\n")
            _pipe(relay.stdin).flush()

    def shape_links(self, shape: LinkShape, links: Iterable[tuple[int, int]]) -> None:
        """Give directed links, (source, dest), this bandwidth from the next packet on; latency is every link's."""
        for source, dest in links:
            tc = ("tc", "-n", self.names[source], "qdisc", "replace", "dev", _device(dest))
            if self._has_netem:
                _do(*tc, "root", "handle", "1:", *shape.netem())
                _do(*tc, "parent", "1:1", "handle", "2:", *shape.tbf())
            else:
                _do(*tc, "root", "handle", "1:", *shape.tbf())

    def command(self, domain: int, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs `arguments` in a domain."""
        return ["ip", "netns", "exec", self.names[domain], *arguments]

    def interface(self, domain: int) -> str:
        """Return a device of the domain that has its address."""
        return _device(1 if domain == 0 else 0)

    def _ends(self) -> list[tuple[int, int]]:
        return [end for here, there in self._pairs for end in ((here, there), (there, here))]

    def _join(self, here: int, there: int) -> None:
        names, devices = (self.names[here], self.names[there]), (_device(there), _device(here))
        if self._has_latency and not self._has_netem:
            self._relay(here, devices)
            _do("ip", "-n", names[0], "link", "set", devices[1], "netns", names[1])
        else:
            _do(
                "ip", "-n", names[0], "link", "add", devices[0], "type", "veth",
                "peer", "name", devices[1], "netns", names[1],
            )  # fmt: skip
        for name, device, own, other in ((names[0], devices[0], here, there), (names[1], devices[1], there, here)):
            _do("ip", "-n", name, "addr", "add", f"{address(own)}/32", "dev", device)
            _do("ip", "-n", name, "link", "set", device, "mtu", str(_MTU), "up")
            _do("ip", "-n", name, "route", "add", f"{address(other)}/32", "dev", device, *_ROUTE)

    def _relay(self, domain: int, devices: tuple[str, str]) -> None:
        relay = subprocess.Popen(
            self.command(domain, [sys.executable, "-m", "strata.evaluation.testbed.relay", *devices]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._relays.append(relay)
        if _pipe(relay.stdout).readline().strip() != "ready":
            raise MissingPart(
                "links with latency need netem or TUN devices, and this kernel has neither", hint="--latency 0"
            )

    def _probe_netem(self) -> bool:
        tc = ["tc", "-n", self.names[0], "qdisc", "replace", "dev", "lo", "root"]
        has = subprocess.run([*tc, "netem", "delay", "1ms"], capture_output=True, check=False).returncode == 0
        if has:
            _do("tc", "-n", self.names[0], "qdisc", "delete", "dev", "lo", "root")
        return has

    def _set(self, name: str) -> None:
        script = "\n".join(f"echo '{value}' > /proc/sys/{key}" for key, value in _SETTINGS.items())
        # A kernel without one of them is as good: the calibration measures the link as it is.
        subprocess.run(["ip", "netns", "exec", name, "sh", "-c", script], capture_output=True, check=False)


def address(domain: int) -> str:
    """Return the address of a domain, known inside the testbed's namespaces alone."""
    return f"10.77.0.{domain + 1}"


def _device(other: int) -> str:
    return f"to-{other}"


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        trouble = (done.stderr or done.stdout).strip().splitlines()
        raise MissingPart(
            f"`{' '.join(command)}` is refused here: {trouble[-1] if trouble else 'no reason given'}"
        )
