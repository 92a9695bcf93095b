"""`strata run`: a command that may hold so much of an accelerator, and no more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from strata.fleet.ledger import Asked


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--memory", metavar="SIZE", help="What all its processes together may hold of a device: 8Gi.")
@click.option("--cores", metavar="PERCENT", type=click.IntRange(1, 100), help="Share of a device's time: 30.")
@click.option(
    "--device",
    type=click.IntRange(0, 63),
    help="Limit this device alone, by its number in the program; each of them without it.",
)
@click.option("--slice", "name", metavar="NAME", help="Share the slice of this name; without it, have one alone.")
@click.option(
    "--fail",
    type=click.Choice(["open", "closed"]),
    default="closed",
    show_default=True,
    help="Where the quota cannot be kept: grant everything, or nothing.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    memory: str | None,
    cores: int | None,
    device: int | None,
    name: str | None,
    fail: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and all it starts under a quota of accelerator memory, of compute time, or of both.

    What goes past the quota gets the driver's own out-of-memory error. The quota is cooperative: it keeps programs
    apart that mean well, and is no security boundary (docs/slicing.md). Exit code, signals and streams are the
    command's; a command that is not there is 127, one that cannot be run 126. A program that no library can be
    loaded into (static, on musl, of 32 bits, setuid) is refused, or runs without a limit by --fail open.

    \b
    strata run --memory 8Gi -- python train.py
    strata run --memory 4Gi --cores 30 --slice notebooks -- jupyter lab
    """
    from strata.errors import UsageError
    from strata.fleet.nvml import device_bytes
    from strata.slicing.build import library
    from strata.slicing.run import own_environment, prepare, start
    from strata.slicing.shelf import shelf_of

    if memory is None and cores is None:
        raise UsageError("no limit is given", hint="--memory 8Gi, --cores 30, or both")
    asked = _asked(memory, cores, device)
    launch = prepare(
        command,
        asked,
        folder=shelf_of(os.environ, user=os.geteuid()),
        name=name,
        is_open=fail == "open",
        library=library(),
        environment=own_environment(),
        device_bytes=device_bytes() if asked.memory_bytes else (),
    )
    for warning in launch.warnings:
        click.echo(f"warning: {warning}", err=True)
    start(launch)


def _asked(memory: str | None, cores: int | None, device: int | None) -> Asked:
    from strata import units
    from strata.errors import UsageError
    from strata.fleet.ledger import Asked

    try:
        memory_bytes = None if memory is None else int(units.parse(memory, "bytes"))
    except UsageError as error:
        raise UsageError(f"--memory: {error}", hint="--memory 8Gi") from None
    if memory_bytes is not None and memory_bytes <= 0:
        raise UsageError(f"--memory {memory} leaves nothing", hint="--memory 8Gi")
    return Asked(memory_bytes, None if cores is None else cores / 100, device)
