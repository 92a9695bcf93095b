"""The `strata` command: one table of subcommands, each imported only when it runs."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click
from click.shell_completion import shell_complete

from strata import __version__
from strata.errors import StrataError

Table = dict[str, tuple[str, str]]

COMMANDS: Final[Table] = {
    "demo": ("strata.cli.demo:demo", "Plan three real jobs on bundled real fleets; writes out/."),
    "check": ("strata.cli.check:check", "Say what works on this machine, and how to get the rest."),
    "lint": ("strata.cli.lint:lint", "Check files strictly; every fault with file:line:col."),
    "schema": ("strata.cli.lint:schema", "Print the JSON schema of a kind of file."),
    "gpus": ("strata.cli.gpus:gpus", "The accelerator catalogue, and how many cards a need takes."),
    "model": ("strata.cli.model:model", "Parameters, memory and FLOPs of a model's config.json."),
    "plan": ("strata.cli.plan:plan", "Plan a job on a fleet: ranked, with the reasons."),
    "simulate": ("strata.cli.simulate:simulate", "Run the steps of plans: shared links, jitter, failures."),
    "explain": ("strata.cli.explain:explain", "Say why a plan was chosen, or a domain was not."),
    "whatif": ("strata.cli.whatif:whatif", "Plan again with something changed; old and new side by side."),
    "export": ("strata.cli.export:export", "Write the files that launch a plan."),
    "testbed": ("strata.cli.testbed:testbed", "Train for real over shaped links, beside what is predicted."),
    "learn": ("strata.cli.learn:learn", "Train Hi-PPO, the learned scheduler; evaluate and export its policies."),
    "serve": ("strata.cli.serve:serve", "Serve requests on pipelines of nodes, or simulate it."),
    "kube": ("strata.cli.kube:kube", "Place accelerator jobs on a Kubernetes cluster of any vendors."),
    "host": ("strata.cli.host:host", "Why training loses CPU time on a machine, and what to do."),
    "run": ("strata.cli.run:run", "Run a command under a quota of accelerator memory and compute."),
    "slices": ("strata.cli.slices:slices", "Who holds what of the accelerators, slice by slice."),
    "kpi": ("strata.cli.kpi:kpi", "The seeds' eleven KPIs, measured, each with its baseline."),
    "bench": ("strata.cli.bench:bench", "Measure strata against published figures and named peers."),
}


class LazyGroup(click.Group):
    """A click group that imports a subcommand only when it is used, so that `--help` is fast."""

    def __init__(self, *args: Any, table: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in table order: the order of a first walk through the tool."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve, or say which command was probably meant."""
        import difflib

        name = args[0] if args else ""
        if name and name not in self.table and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.table, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="strata")
def cli() -> None:
    """One scheduler for AI compute, from data centres to CPU cores, that says why."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code of docs/exit-codes.md."""
    for stream in (sys.stdout, sys.stderr):
        # Threads have names of any letters, and a terminal of a few is no reason to say nothing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; user errors are printed, never raised."""
    # Not click's own main(): it turns a broken pipe into exit code 1 before we see it.
    if instruction := os.environ.get("_STRATA_COMPLETE"):
        return shell_complete(cli, {}, "strata", "_STRATA_COMPLETE", instruction)
    try:
        with cli.make_context("strata", list(sys.argv[1:] if arguments is None else arguments)) as context:
            result = cli.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()  # what a pipe or a disk refuses is told here, not after the exit code is set
    except click.exceptions.Exit as done:
        return done.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except StrataError as error:
        for line in error.lines():
            click.echo(line if line.startswith("try:") else f"error: {line}", err=True)
        return error.exit_code
    except BrokenPipeError:
        # `strata ... | head` is no error; stdout must not be flushed again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0
