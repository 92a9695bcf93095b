"""`strata slices`: who holds what of the accelerators, slice by slice, once or live."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from strata.cli.lazy import LazyGroup
from strata.cli.output import console, emit, output_option, show
from strata.sentences import filled
from strata.tables import Shown, printable, rows

if TYPE_CHECKING:
    from strata.fleet.ledger import DeviceUse, LedgerHolder

EVERY_S: Final = 1.0


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    table={"export": ("strata.cli.slices_export:export", "What the slices of this node hold, for Prometheus.")},
)
@click.option("--watch", is_flag=True, help="Refresh every second, until Ctrl-C.")
@output_option
@click.pass_context
def slices(context: click.Context, watch: bool, output: str) -> None:
    """Show the slices of `strata run`, and what each of their processes holds.

    Inside a container with a fraction of a device, shows that fraction. Root sees the slices of all users. Memory
    of processes that have ended is shown as gone: it is reclaimed when a process next allocates.

    \b
    strata slices --watch
    strata slices -o json
    """
    from strata.errors import UsageError

    if context.invoked_subcommand:
        return
    if watch and output != "table":
        raise UsageError("--watch works with tables only", hint="-o table")
    if watch:
        _watch()
    uses, faults = _look()
    for fault in faults:
        click.echo(f"warning: {fault}", err=True)
    emit({"slices": [_data(use) for use in uses]}, output, _show(uses))


def _watch() -> NoReturn:
    """Show again and again, in the place of what was there; one below the other where this is no terminal."""
    from rich.console import Group
    from rich.live import Live

    terminal = console()
    with Live(console=terminal, auto_refresh=False) if terminal.is_terminal else nullcontext() as live:
        while True:
            uses, faults = _look()
            shown = [*_show(uses), *(f"warning: {fault}" for fault in faults)]
            if live is None:
                show(shown)
                sys.stdout.flush()  # a pipe's reader waits for it
            else:
                parts = [printable(part) if isinstance(part, str) else part for part in shown]
                live.update(Group(*parts), refresh=True)
            time.sleep(EVERY_S)


def _look() -> tuple[list[DeviceUse], list[str]]:
    """Return what there is, and why what could not be read was not."""
    from strata.slicing.ledger_directory import visible_uses

    return visible_uses(os.environ, user=os.geteuid())


def _data(use: DeviceUse) -> dict[str, Any]:
    return {
        "name": use.name,
        "device": use.device,
        "vendor": use.vendor or None,
        "limit_bytes": use.limit_bytes,
        "cores_share": use.cores_share,
        "used_bytes": use.used_bytes,
        "gone_bytes": use.gone_bytes,
        "context_bytes": use.context_bytes if use.context_trust else None,
        "context_trust": use.context_trust or None,
        "refused": use.refused,
        "processes": [{"pid": holder.pid, "used_bytes": holder.used_bytes} for holder in use.processes],
    }


def _show(uses: Sequence[DeviceUse]) -> Shown:
    yield _table(uses)
    yield from _notes(uses)


def _table(uses: Sequence[DeviceUse]) -> Any:
    from strata.units import show_bytes

    if not uses:
        return "no slices; start one with: strata run --memory 8Gi -- COMMAND"
    body = []
    for use in uses:
        limit = "-" if use.limit_bytes is None else show_bytes(use.limit_bytes)
        share = f"{100 * use.used_bytes / use.limit_bytes:.0f}%" if use.limit_bytes else "-"
        device = "any" if use.device is None else str(use.device)
        cores = "-" if use.cores_share is None else f"{100 * use.cores_share:.0f}%"
        body.append([use.name, device, show_bytes(use.used_bytes), limit, share, cores, "", ""])
        body += [
            ["", "", show_bytes(holder.used_bytes), "", "", "", str(holder.pid), _command(holder)]
            for holder in use.processes
        ]
        if use.gone_bytes:
            body.append(["", "", show_bytes(use.gone_bytes), "", "", "", "gone", ""])
    return rows(["slice", "device", "used", "limit", "full", "cores", "pid", "command"], body, right=range(1, 7))


def _notes(uses: Sequence[DeviceUse]) -> Iterator[str]:
    """Yield what the table has no column for: what contexts are charged, and what was refused."""
    from strata.units import show_bytes

    for use in uses:
        where = f"{use.name}, device {use.device}"
        if use.context_trust:
            yield f"{where}: each process's context counts {show_bytes(use.context_bytes)} ({use.context_trust})"
        if use.refused:
            yield f"{where}: {filled('{num} requests did not fit', {'num': use.refused})}"


def _command(holder: LedgerHolder) -> str:
    if not holder.is_here:  # a container's, whose pid is another process here
        return ""
    try:
        name = Path(f"/proc/{holder.pid}/comm").read_text(errors="replace").strip()
        return "".join(letter if letter.isprintable() else "?" for letter in name)
    except OSError:  # it has just ended
        return ""
