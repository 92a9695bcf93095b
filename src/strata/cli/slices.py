"""`strata slices`: who holds what of the accelerators, slice by slice, once or live."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.output import console, emit, output_option, rows

if TYPE_CHECKING:
    from strata.fleet.ledger import DeviceUse, Holder

EVERY_S: Final = 1.0


@click.command()
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@output_option
def slices(watch: bool, output: str) -> None:
    """Show the slices of `strata run`, and what each of their processes holds.

    Inside a container with a fraction of a device, shows that fraction. Root sees the slices of all users. Memory
    of processes that have ended is shown as gone: it is reclaimed when a process next allocates.

    \b
    strata slices --watch
    strata slices -o json
    """
    from strata.errors import UsageError

    if not watch:
        found = list(_look())
        emit({"slices": [_data(one) for one in found]}, output, lambda console: console.print(_table(found)))
        return
    if output != "table":
        raise UsageError("--watch works with tables only", hint="-o table")
    from rich.live import Live

    with Live(_table(list(_look())), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(EVERY_S)
            live.update(_table(list(_look())), refresh=True)


def _look() -> Iterator[DeviceUse]:
    """Yield what there is; a file that cannot be read is named on stderr."""
    from strata.errors import UsageError
    from strata.fleet.ledger import read_ledger
    from strata.slicing.ledger_directory import visible_ledgers

    for path in visible_ledgers(os.environ, user=os.geteuid()):
        try:
            yield from read_ledger(path, name=path.stem)
        except UsageError as error:
            if path.exists():  # not one that was just cleared away
                click.echo(f"warning: {error}", err=True)


def _data(one: DeviceUse) -> dict[str, Any]:
    return {
        "name": one.name,
        "device": one.device,
        "limit_bytes": one.limit_bytes,
        "used_bytes": one.used_bytes,
        "processes": [{"pid": holder.pid, "used_bytes": holder.used_bytes} for holder in one.processes],
    }


def _table(found: Sequence[DeviceUse]) -> Any:
    from strata.units import show_bytes

    if not found:
        return "no slices; start one with: strata run --memory 8Gi -- COMMAND"
    body = []
    for one in found:
        limit = "-" if one.limit_bytes is None else show_bytes(one.limit_bytes)
        share = f"{100 * one.used_bytes / one.limit_bytes:.0f}%" if one.limit_bytes else "-"
        device = "any" if one.device is None else str(one.device)
        cores = "-" if one.cores_share is None else f"{100 * one.cores_share:.0f}%"
        body.append([one.name, device, show_bytes(one.used_bytes), limit, share, cores, "", ""])
        body += [
            ["", "", show_bytes(holder.used_bytes), "", "", "", str(holder.pid), _command(holder)]
            for holder in one.processes
        ]
        if one.gone_bytes:
            body.append(["", "", show_bytes(one.gone_bytes), "", "", "", "gone", ""])
    return rows(["slice", "device", "used", "limit", "full", "cores", "pid", "command"], body, right=range(1, 7))


def _command(holder: Holder) -> str:
    if not holder.is_here:  # a container's, whose pid is another process here
        return ""
    try:
        name = Path(f"/proc/{holder.pid}/comm").read_text(errors="replace").strip()
        return "".join(letter if letter.isprintable() else "?" for letter in name)
    except OSError:  # it has just ended
        return ""
