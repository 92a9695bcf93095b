"""`strata run`: a command that may hold so much of an accelerator, and no more."""

from __future__ import annotations

import os

import click

from strata.cli.parameters import SIZE, Whole, choice, names_program


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--memory", type=SIZE, help="Device memory that all its processes together may hold: 8Gi.")
@click.option(
    "--cores",
    metavar="PERCENT",
    type=Whole(1, 100),
    help="Share of a device's compute time, in percent: 30.",
)
@click.option(
    "--device",
    type=Whole(0, 63),
    help="Limit only this device, by its number in the program. Default: each device.",
)
@click.option("--slice", "name", metavar="NAME", help="Join the slice of this name. Default: a slice of its own.")
@click.option(
    "--fail",
    type=choice("open", "closed"),
    default="closed",
    help="If the quota cannot be enforced: grant every request (open) or none (closed).",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, callback=names_program)
def run(
    memory: float | None,
    cores: int | None,
    device: int | None,
    name: str | None,
    fail: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND and all it starts under a quota of accelerator memory, compute time, or both.

    Requests beyond the quota get the driver's own out-of-memory error. The quota is cooperative: it separates
    well-behaved programs and is not a security boundary (docs/slicing.md). Exit code, signals and streams are the
    command's; a command that does not exist exits 127, one that cannot be executed 126. A program that cannot
    preload a library (static, musl, 32-bit, setuid) is refused, or runs without a limit with --fail open.

    \b
    strata run --memory 8Gi -- python train.py
    strata run --memory 4Gi --cores 30 --slice notebooks -- jupyter lab
    """
    from strata.errors import UsageError
    from strata.fleet.nvml import device_bytes, device_uuids
    from strata.fleet.slices import QuotaLimits
    from strata.slicing.build import library
    from strata.slicing.ledger_directory import user_directory
    from strata.slicing.run import own_environment, prepare, start

    if memory is None and cores is None:
        raise UsageError("no limit was given", hint="--memory 8Gi, --cores 30, or both")
    memory_bytes = None if memory is None else max(1, int(memory))
    limits = QuotaLimits(memory_bytes, None if cores is None else cores / 100, device)
    launch = prepare(
        command,
        limits,
        folder=user_directory(os.environ, user=os.geteuid()),
        name=name,
        is_open=fail == "open",
        library=library(),
        environment=own_environment(),
        device_bytes=device_bytes() if limits.memory_bytes else (),
        device_uuids=device_uuids() if device is not None else (),
    )
    for warning in launch.warnings:
        click.echo(f"warning: {warning}", err=True)
    start(launch)
