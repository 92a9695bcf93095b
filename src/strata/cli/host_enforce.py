"""`strata host enforce`: the plain policy kept in force, measured, and taken back where it does not help."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import POSITIVE, Finite, Whole
from strata.cli.planning import remember
from strata.errors import GoalMissed, Infeasible, MissingPart, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from strata.host.apply.enforce import Enforcement
    from strata.host.policy.step import Step

INTERVAL_S = 1.0
"""A thread has its layer within two of these."""


@click.command()
@click.option("--pid", type=POSITIVE, required=True, help="The job: this process and its descendants.")
@click.option(
    "--interval", type=Finite(0.1, 60), default=INTERVAL_S, show_default=True, help="Seconds of a round."
)
@click.option("--seconds", type=Finite(0.1), help="Stop after so long; without it, on Ctrl-C or SIGTERM.")
@click.option(
    "--windows",
    type=Whole(0, 100),
    default=5,
    show_default=True,
    help="Windows of two rounds, before and after, by which the effect is judged; 0: not at all.",
)
@click.option("--keep", is_flag=True, help="Leave what was done in force at the end; `undo` takes it back.")
@output_option
def enforce(pid: int, interval: float, seconds: float | None, windows: int, keep: bool, output: str) -> None:
    """Keep the layers of `layers --plain --pid` in force: threads that start later get theirs within two seconds.

    First measures how long critical threads wait, and how far equal windows differ (A/A); then applies the
    steps, measures again, and takes them back if waiting did not fall by more than that (exit 4). Everything is
    in the journal of `apply`: `strata host undo` takes it back at any time, and ends this command. What was
    measured is kept, for the Host page and `strata runs list --kind enforcement`.

    \b
    strata host enforce --pid 4035
    strata host enforce --pid 4035 --seconds 60 --keep
    """
    from strata.host.agent.jobs import job_name
    from strata.host.apply.enforce import Enforcement
    from strata.host.apply.journal import folder_of, opened
    from strata.host.apply.machine import KernelFiles
    from strata.host.apply.refuse import refusals, residents
    from strata.host.record.work import acting_as, behind_sudo
    from strata.host.signals import stoppable
    from strata.host.threads.processes import command_of

    if os.geteuid() != 0:
        raise MissingPart("only root may put threads forward", hint="sudo strata host enforce ...")
    if not Path(f"/proc/{pid}").exists():
        raise UsageError(f"there is no process {pid}", hint="strata host threads")
    job = {"job": job_name(pid), "pid": pid, "command": command_of(Path(f"/proc/{pid}"))}
    folder, end_s = folder_of(os.environ, user=os.geteuid()), time.monotonic() + (seconds or float("inf"))

    def refuse(steps: Sequence[Step]) -> None:
        if reasons := refusals(steps, residents()):
            raise Infeasible(f"nothing was done: {reasons[0]}")

    def pause() -> bool:
        time.sleep(max(0.0, min(interval, end_s - time.monotonic())))
        return time.monotonic() < end_s

    kept = Enforcement(
        _looks(pid),
        pause,
        lambda: opened(folder),
        KernelFiles(),
        refuse,
        say=lambda text: click.echo(text, err=True),
        windows=windows,
    )
    with stoppable():
        try:
            end = kept.run()
        except KeyboardInterrupt:
            end = "stopped"
        except BaseException:
            kept.take_back()
            raise
        if not keep and end not in ("undone", "taken-back"):
            kept.take_back()
    data = job | _data(kept, end, is_kept=keep and end == "stopped")
    with acting_as(behind_sudo(os.environ, user=os.geteuid())):
        name = job["job"] or f"process {pid}"
        remember("enforcement", {"name": name, "verdict": "; ".join(_show(data)), **data})
    emit(data, output, _show(data))
    if end == "taken-back":
        raise GoalMissed("the policy did not help, and was taken back")


def _looks(pid: int) -> Any:
    from strata.host.apply.enforce import HostLook
    from strata.host.machine import cpus as cpus_of
    from strata.host.machine import kernel as kernel_of
    from strata.host.policy.plain import plain
    from strata.host.threads.classify import classify, only
    from strata.host.threads.observe import observe

    cpus, kernel = cpus_of.probe(), kernel_of.probe()

    def look() -> HostLook:
        snapshot = observe()
        if pid not in snapshot.processes:
            return HostLook((), ())
        threads = only(classify(snapshot), snapshot, pid)
        # Whoever keeps the layers in force is not held back by them.
        threads = tuple(thread for thread in threads if thread.thread.pid != os.getpid())
        return HostLook(threads, plain(cpus, kernel, threads).steps)

    return look


def _data(kept: Enforcement, end: str, *, is_kept: bool) -> dict[str, Any]:
    return {
        "end": end,
        "steps_done": kept.num_done,
        "is_in_force": is_kept,
        "effect": kept.effect.to_dict() if kept.effect is not None else None,
    }


def _show(data: dict[str, Any]) -> Iterator[str]:
    effect = data["effect"]
    yield f"{data['end']}: {data['steps_done']} steps were done" + (
        ", and stay" if data["is_in_force"] else ", and undone" if data["steps_done"] else ""
    )
    if effect is not None:
        after = f", then {effect['after']:.1%}" if effect["after"] is not None else ""
        yield (
            f"critical threads waited {effect['before']:.1%} of what they wanted{after}; "
            f"equal windows differ by up to {effect['floor']:.1%}: {effect['verdict']}"
        )
