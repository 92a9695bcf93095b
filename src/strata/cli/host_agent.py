"""`strata host agent`: what the threads of each job wait for, always on, as metrics."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from strata.cli.parameters import PORT, Finite
from strata.errors import MissingPart, need

if TYPE_CHECKING:
    from strata.host.agent.metrics import HostAgentMetrics

PORT_USUAL: Final = 9102


@click.command()
@click.option("--interval", type=Finite(0.1, 3600), default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--seconds", type=Finite(0.1), help="Stop after so long; without it, on Ctrl-C or SIGTERM.")
@click.option("--port", type=PORT, default=PORT_USUAL, show_default=True, help="Of /metrics and /healthz; 0: any.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of /metrics and /healthz.")
@click.option(
    "--reports",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Record ten seconds and file a report here when a job's critical threads wait; needs root.",
)
@click.option(
    "--share",
    type=Finite(0.01, 1.0),
    default=0.25,
    show_default=True,
    help="Waiting, of what critical threads want, from which a report is filed.",
)
def agent(
    interval: float, seconds: float | None, port: int, host: str, reports: Path | None, share: float
) -> None:
    """Watch this machine: run-queue delay by job, rank and pool; pressure, steal, throttling, interrupts.

    Reads /proc, needs no tracing, and works under any scheduler. What a kernel or machine does not count is
    left out. Jobs are told apart by STRATA_JOB, Slurm, pod or container; root also sees who feeds accelerators.

    \b
    strata host agent --port 9102
    strata host agent --host 0.0.0.0 --reports /var/lib/strata/reports
    """
    for module in ("starlette", "uvicorn"):
        need(module, extra="serve")
    from strata.host.agent.agent import HostAgent, recorder
    from strata.host.agent.metrics import HostAgentMetrics
    from strata.host.agent.pmu import CacheMisses
    from strata.host.agent.trigger import Trigger, TriggerRules
    from strata.host.agent.watch import ThreadWatch
    from strata.host.record import tracefs
    from strata.host.signals import stoppable

    if reports is not None:
        if os.geteuid() != 0:
            raise MissingPart("only root may record a trace", hint="sudo strata host agent ..., or no --reports")
        tracefs.find()  # now, not when a job waits
    watch = ThreadWatch()
    metrics = HostAgentMetrics(watch)
    misses = CacheMisses(sorted(os.sched_getaffinity(0)))
    trigger = Trigger(TriggerRules(share=share)) if reports is not None else None
    record = recorder(reports) if reports is not None else None
    looking = HostAgent(watch, metrics, misses, trigger=trigger, record=record)
    latest = time.monotonic()
    end_s = float("inf") if seconds is None else latest + seconds
    with ExitStack() as open_things, suppress(KeyboardInterrupt):
        open_things.callback(misses.close)
        open_things.enter_context(stoppable())
        looking.tick(now_s=latest)
        if reports is not None and not watch.has_schedstat:
            click.echo("no report will be filed: this kernel counts no waits (no /proc/PID/schedstat)", err=True)
        looked = [latest]
        _serve(metrics, (host, port), open_things, looked, interval)
        while (now := time.monotonic()) < end_s:
            time.sleep(min(interval, max(end_s - now, 0.0)))
            looked[0] = time.monotonic()
            looking.tick(now_s=looked[0])


def _serve(
    metrics: HostAgentMetrics,
    address: tuple[str, int],
    open_things: ExitStack,
    looked: list[float],
    interval_s: float,
) -> None:
    from strata.host.agent.agent import RECORD_S
    from strata.host.manager.page import frame
    from strata.net.server import listen, serving

    patience_s = 10 * interval_s + 72 * RECORD_S  # a recording and its report stop the looks
    listener = listen(*address)
    open_things.callback(listener.close)
    pages = frame(metrics.registry, is_well=lambda: time.monotonic() - looked[0] < patience_s)
    open_things.enter_context(serving(pages, listener))
    click.echo(f"metrics: http://{address[0]}:{listener.getsockname()[1]}/metrics", err=True)
