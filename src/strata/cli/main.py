"""The `strata` command: one table of subcommands, each imported only when it runs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, NoReturn

import click
from click.shell_completion import shell_complete

from strata import __version__
from strata.cli.lazy import CommandLine, LazyGroup, Table
from strata.errors import INTERRUPTED, StrataError, UsageError, of_system
from strata.tables import printable

COMMANDS: Final[Table] = {
    "demo": ("strata.cli.demo:demo", "Plan three real jobs on bundled real fleets; writes out/."),
    "check": ("strata.cli.check:check", "Say what works on this machine, and how to get the rest."),
    "lint": ("strata.cli.lint:lint", "Check files strictly; every fault with file:line:col."),
    "schema": ("strata.cli.lint:schema", "Print the JSON schema of a kind of file."),
    "gpus": ("strata.cli.gpus:gpus", "The accelerator catalogue, and how many cards a need takes."),
    "model": ("strata.cli.model:model", "Parameters, memory and FLOPs of a model's config.json."),
    "profile": ("strata.cli.profile:profile", "Time a model's layers on a device that is here."),
    "calibrate": ("strata.cli.calibrate:calibrate", "Fit the cost model to step times of your own runs."),
    "plan": ("strata.cli.groups:plan", "Plan a job on a fleet: ranked, with the reasons."),
    "simulate": ("strata.cli.simulate:simulate", "Run the steps of plans: shared links, jitter, failures."),
    "replay": ("strata.cli.replay:replay", "Run the scheduler's loop in virtual time over a trace of links."),
    "explain": ("strata.cli.explain:explain", "Say why a plan was chosen, or a domain was not."),
    "whatif": ("strata.cli.whatif:whatif", "Plan again with something changed; old and new side by side."),
    "export": ("strata.cli.export:export", "Write the files that launch a plan."),
    "testbed": ("strata.cli.testbed:testbed", "Train for real over shaped links, beside what is predicted."),
    "learn": ("strata.cli.learn:learn", "Train, evaluate and export Hi-PPO, the learned scheduler."),
    "serve": ("strata.cli.groups:serve", "Serve requests on pipelines of nodes, or simulate it."),
    "kube": ("strata.cli.groups:kube", "Place accelerator jobs on a Kubernetes cluster of any vendors."),
    "host": ("strata.cli.groups:host", "Why training loses CPU time on a machine, and what to do."),
    "run": ("strata.cli.run:run", "Run a command under a quota of accelerator memory and compute."),
    "slices": ("strata.cli.slices:slices", "Who holds what of the accelerators, slice by slice."),
    "fleet": ("strata.cli.groups:fleet", "Find what there is, and measure the links between it."),
    "up": ("strata.cli.up:up", "Run the scheduler: jobs across domains, from submit to done."),
    "submit": ("strata.cli.submit:submit", "Hand a training job to the scheduler."),
    "jobs": ("strata.cli.submit:jobs", "List the scheduler's jobs."),
    "job": ("strata.cli.submit:job", "One job: where it runs, its attempts, and why."),
    "logs": ("strata.cli.submit:logs", "What the ranks of a job wrote."),
    "cancel": ("strata.cli.submit:cancel", "End a job."),
    "drain": ("strata.cli.submit:drain", "Move away what runs in a domain, and start nothing there."),
    "ui": ("strata.cli.ui:ui", "Plans, fleet, jobs and decisions in a browser."),
    "report": ("strata.cli.report:report", "Plans and fleets as one HTML file with pictures."),
    "runs": ("strata.cli.runs:runs", "The history of plans and reports of this machine."),
    "completion": ("strata.cli.completing:completion", "Print the completion script of a shell."),
    "kpi": ("strata.cli.kpi:kpi", "The eleven target KPIs, measured, each with its baseline."),
    "bench": ("strata.cli.groups:bench", "Measure strata against published figures and named peers."),
}


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__, prog_name="strata")
def cli() -> None:
    """One scheduler for AI compute, from data centres to CPU cores, that says why."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code of docs/exit-codes.md."""
    for name in ("stdout", "stderr"):
        setattr(sys, name, _dependable(getattr(sys, name)))
    try:
        code = run(arguments)
    except KeyboardInterrupt:  # a second Ctrl-C, while the first was dealt with
        code = INTERRUPTED
    sys.exit(code)


def _dependable(stream: Any) -> Any:
    """Return a standard stream that writes whole texts, in any terminal's letters."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if isinstance(stream.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: a raw file may take half of a text without an error. A buffer insists, line by line.
        encoding = stream.encoding
        stream = io.TextIOWrapper(io.BufferedWriter(stream.detach()), encoding=encoding, line_buffering=True)
    stream.reconfigure(errors="backslashreplace")  # threads have names of any letters
    return stream


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    The one place where errors end: what a user can cause (a bad argument or file, a full disk, a place that may
    not be entered, Ctrl-C, more than fits memory) is printed, never raised. A bug of ours is raised.
    """
    # Not click's own main(): it turns a broken pipe into exit code 1 before we see it.
    if instruction := os.environ.get("_STRATA_COMPLETE"):
        return shell_complete(cli, {}, "strata", "_STRATA_COMPLETE", instruction)
    try:
        return _answered(arguments)
    except KeyboardInterrupt:  # while an error was being printed, too
        _report("interrupted")
        return INTERRUPTED


def _answered(arguments: Sequence[str] | None) -> int:
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with cli.make_context("strata", typed.copy(), obj=CommandLine(typed)) as context:
            result = cli.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()  # what a pipe or a disk refuses counts before the exit code is set
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.Abort:
        _report("interrupted")
        return INTERRUPTED
    except click.ClickException as error:
        if _is_json(typed):
            misuse = UsageError(error.format_message())
            _report(_as_json({**misuse.to_dict(), "exit_code": error.exit_code}))
            return error.exit_code
        with suppress(OSError):
            error.show()
        return error.exit_code
    except BrokenPipeError:
        _abandon_stdout()  # `strata ... | head` is no error
        return 0
    except (StrataError, OSError, MemoryError) as error:
        shown = error if isinstance(error, StrataError) else of_system(error)
        if not isinstance(error, StrataError):
            _abandon_stdout()
        if _is_json(typed):
            _report(_as_json(shown.to_dict()))
        else:
            _report(*(line if line.startswith("try:") else f"error: {line}" for line in shown.lines()))
        return shown.exit_code
    return result if isinstance(result, int) else 0


def _is_json(typed: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, also where it could not be parsed; what follows `--` is of others."""
    own = typed[: typed.index("--")] if "--" in typed else typed
    return any(word in ("-ojson", "--output=json") for word in own) or any(
        flag in ("-o", "--output") and value == "json" for flag, value in pairwise(own)
    )


def _as_json(error: dict[str, object]) -> str:
    import json

    return json.dumps({"error": error})


def _report(*lines: str) -> None:
    with suppress(OSError):  # stderr may be full as well; the exit code still tells
        for line in lines:
            click.echo(printable(line), err=True)


def _abandon_stdout() -> None:
    """Let go of what stdout did not take, so that Python does not try again, and fail, at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or no file: there is nothing to let go
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)
