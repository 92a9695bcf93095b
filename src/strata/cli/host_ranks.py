"""`strata host ranks`: which rank, on which host, makes a whole job wait; from the agents of its hosts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import Finite
from strata.errors import UsageError
from strata.tables import Line, Shown, rows

if TYPE_CHECKING:
    from strata.host.agent.ranks import AgentPage

MOST_BYTES: Final = 16 * 2**20
"""Of a page: 500 series are a tenth of a megabyte."""
TIMEOUT_S: Final = 5.0


@click.command()
@click.argument("agents", nargs=-1, required=True, metavar="AGENT...")
@click.option(
    "--seconds", type=Finite(0.1, 3600), default=10.0, show_default=True, help="Between the two readings."
)
@output_option
def ranks(agents: tuple[str, ...], seconds: float, output: str) -> None:
    """Compare the ranks of each job across hosts: who waits for CPUs beyond the others, and what that costs.

    AGENT is the address of a `strata host agent`, as in http://node7:9102, or HOST=ADDRESS. Hosts whose agent does
    not answer, or tells no run-queue delays, are listed and left out.

    \b
    strata host ranks http://node1:9102 http://node2:9102
    strata host ranks --seconds 60 $(printf 'http://node%d:9102 ' $(seq 64))
    """
    from strata.host.agent.ranks import job_delays, without_delays

    addresses = dict(_address(agent) for agent in agents)
    before, silent = _read(addresses)
    time.sleep(seconds)
    after, silent_later = _read(addresses)
    if not before or not after:
        raise UsageError("no agent answers", hint="strata host agent, on the hosts of the job")
    unread = sorted({*silent, *silent_later, *without_delays(after)})
    delays = job_delays(before, after)
    data = {"seconds": seconds, "jobs": [delay.to_dict() for delay in delays], "left_out": unread}
    emit(data, output, _show(data))


def _address(agent: str) -> tuple[str, str]:
    name, _, address = agent.rpartition("=") if "=" in agent.partition("://")[0] else (agent, "", agent)
    if not address.startswith(("http://", "https://")):
        raise UsageError(f"{agent}: should be an address, as http://node7:9102")
    return name.partition("://")[2].rstrip("/") or name, f"{address.rstrip('/')}/metrics"


def _read(addresses: dict[str, str]) -> tuple[list[AgentPage], list[str]]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(32, len(addresses))) as pool:
        pages = list(pool.map(_page, addresses, addresses.values()))
    missing = [host for host, page in zip(addresses, pages, strict=True) if page is None]
    return [page for page in pages if page is not None], missing


def _page(host: str, address: str) -> AgentPage | None:
    from urllib.request import urlopen

    from strata.host.agent.ranks import AgentPage

    try:
        with urlopen(address, timeout=TIMEOUT_S) as answer:
            text = answer.read(MOST_BYTES).decode("utf-8", "replace")
        return AgentPage.of(host, text, at_s=time.monotonic())
    except (OSError, ValueError):
        return None


def _show(data: dict[str, Any]) -> Shown:
    jobs = data["jobs"]
    body = (
        (
            job["job"],
            job["host"],
            job["rank"] or "-",
            job["thread"] or job["pool"],
            f"{job['waited_s']:.2f}",
            f"{job['beyond_median_s']:.2f}",
            f"{job['device_s']:.1f}",
            job["culprit"] or "-",
        )
        for job in jobs
    )
    if jobs:
        headers = ("job", "host", "rank", "thread", "waited s", "beyond s", "device-s", "busiest beside it")
        yield rows(headers, body, right=(4, 5, 6))
        yield f"of {data['seconds']:g} s; beyond: the median rank; device-seconds: of all ranks, at most"
    else:
        yield "no rank of a job is on these hosts"
    if data["left_out"]:
        yield Line(f"left out, silent or without run-queue delays: {', '.join(data['left_out'])}", is_whole=True)
