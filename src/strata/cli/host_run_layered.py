"""`strata host run-layered`: scx_layered under watch, with metrics, and what to do once it is out."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from strata.cli.parameters import PORT, Finite, OutputFile
from strata.errors import GoalMissed, Infeasible, MissingPart, need

if TYPE_CHECKING:
    from strata.host.manager.metrics import Metrics
    from strata.host.manager.watch import SchedulerRun
    from strata.host.policy.codec import ParsedPolicy
    from strata.host.policy.step import Step


@click.command()
@click.argument("policy")
@click.option("--program", default="scx_layered", help="scx_layered, by name or path.")
@click.option("--seconds", type=Finite(0.1), help="Stop after so long; without it, on Ctrl-C or SIGTERM.")
@click.option("--fallback", metavar="PLAIN", help="Steps of `layers --plain` to apply once it has ended.")
@click.option(
    "--metrics",
    type=OutputFile(),
    metavar="FILE",
    help="Write metrics here after each look, for node_exporter's textfile collector.",
)
@click.option("--port", type=PORT, help="Serve /metrics and /healthz here; 0: any that is free.")
@click.option("--host", default="127.0.0.1", help="Address of /metrics and /healthz.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_layered(
    policy: str,
    program: str,
    seconds: float | None,
    fallback: str | None,
    metrics: Path | None,
    port: int | None,
    host: str,
    arguments: tuple[str, ...],
) -> None:
    """Start scx_layered with POLICY, supervise it, and stop it; ARGUMENTS (after --) are passed on.

    A policy with errors is not started. If the kernel ejects the scheduler, or it dies, tasks are back with the
    kernel's own scheduler at once; that is reported, --fallback is applied, and the exit code is 4. The scheduler
    never outlives this command, however it ends. `strata host undo --off` from anywhere stops it too.

    \b
    strata host layers -o json > policy.json
    strata host run-layered policy.json --port 9750
    strata host run-layered policy.json --fallback plain.json -- --slice-us 5000
    """
    from strata.host.apply.journal import folder_of
    from strata.host.machine import cpus as cpus_of
    from strata.host.manager.metrics import Metrics
    from strata.host.manager.run import ManagerPaths, check, manage, wait_until_disabled
    from strata.host.policy.codec import load
    from strata.host.policy.policy import arguments as arguments_of
    from strata.host.signals import stoppable

    read = load(policy)
    _lint(policy, read)
    steps = _plain(fallback) if fallback is not None else ()
    check()
    if os.geteuid() != 0:
        raise MissingPart("only root may load a scheduler", hint="sudo strata host run-layered ...")
    executable = shutil.which(program)
    if executable is None:
        raise MissingPart(f"{program} is not here", hint="cargo install scx_layered; or --program PATH")
    folder = folder_of(os.environ, user=os.geteuid())
    place = ManagerPaths(Path("/"), folder / "scx_layered.log", folder / "off")
    if place.off.exists():
        raise Infeasible(f"the kill switch is set: {place.off}", hint=f"rm {place.off}")
    folder.mkdir(parents=True, exist_ok=True)
    layers = [layer for layer in read.layers if layer is not None]
    command = [executable, *arguments_of(layers, num_nodes=len(cpus_of.probe().nodes)), *arguments, f"f:{policy}"]
    figures = Metrics()

    def publish() -> None:
        if metrics is not None:
            from strata.files import write_text
            from strata.net.metrics import render

            write_text(metrics, render(figures.registry))

    with ExitStack() as open_things:
        open_things.enter_context(stoppable())
        if port is not None:
            _serve(figures, (host, port), open_things)
        course = manage(command, place, metrics=figures, seconds=seconds, tell=_tell, publish=publish)
    if not wait_until_disabled(place.root):
        raise MissingPart(
            "the kernel still runs a scheduler of sched_ext", hint="SysRq-S: echo S > /proc/sysrq-trigger"
        )
    if course.verdict in ("stopped", "switched-off"):
        return
    if steps:
        _fall_back(steps)
    raise GoalMissed(
        f"scx_layered is out ({course.verdict}): {course.why}; the kernel's own scheduler runs all tasks",
        hint=f"read {place.log}",
    )


def _lint(policy: str, read: ParsedPolicy) -> None:
    from strata.host.machine import cpus, kernel
    from strata.host.policy.lint.policy import lint
    from strata.host.policy.lint.room import TargetMachine

    findings = lint(read, site=TargetMachine(cpus.probe(), kernel.probe()))
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise GoalMissed(f"{policy}: {errors[0].reason}", hint=f"strata host lint {policy}")


def _plain(path: str) -> tuple[Step, ...]:
    """Return steps that may be applied, so that none is found wanting when they are needed."""
    from strata.host.apply.policy import load
    from strata.host.apply.refuse import refusals, residents

    steps = load(path)
    refused = refusals(steps, residents())
    if refused:
        raise Infeasible(f"{path}: {refused[0]}", hint=f"strata host apply {path} --dry-run")
    return steps


def _serve(figures: Metrics, address: tuple[str, int], open_things: ExitStack) -> None:
    for module in ("starlette", "uvicorn"):
        need(module, extra="serve")
    from strata.host.manager.page import frame
    from strata.net.server import listen, serving

    listener = listen(*address)
    open_things.callback(listener.close)
    pages = frame(figures.registry, is_well=lambda: figures.course.verdict == "running")
    open_things.enter_context(serving(pages, listener))
    click.echo(f"metrics: http://{address[0]}:{listener.getsockname()[1]}/metrics", err=True)


def _tell(course: SchedulerRun) -> None:
    why = f": {course.why}" if course.why else f", by {course.ops}" if course.ops else ""
    click.echo(f"scx_layered: {course.verdict}{why}", err=True)


def _fall_back(steps: tuple[Step, ...]) -> None:
    from strata.host.apply.act import apply
    from strata.host.apply.journal import folder_of, opened
    from strata.host.apply.machine import KernelFiles

    with opened(folder_of(os.environ, user=os.geteuid())) as journal:
        outcomes = apply(steps, KernelFiles(), journal)
    done = sum(outcome.result == "done" for outcome in outcomes)
    click.echo(f"fallback: {done} of {len(outcomes)} steps applied; strata host undo takes them back", err=True)
