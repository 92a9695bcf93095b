"""`strata host`: one table of what concerns the CPU cores of one machine, each imported only when it runs."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.lazy import LazyGroup, Table

HOST: Final[Table] = {
    "apply": ("strata.cli.host_apply:apply", "Take the steps of a plain policy; each can be undone."),
    "layers": ("strata.cli.host_layers:layers", "A policy for the threads that run here, for any kernel."),
    "lint": ("strata.cli.host_lint:lint", "Find what scx_layered silently accepts in a policy."),
    "record": ("strata.cli.host_record:record", "Record what the scheduler does, with the machine beside."),
    "report": ("strata.cli.host_report:report", "Why threads waited for a CPU, who had it, and what to do."),
    "rollout": ("strata.cli.host_rollout:rollout", "Try a policy on attempts of jobs: A/A first, then A/B."),
    "run-layered": ("strata.cli.host_run_layered:run_layered", "Run scx_layered under watch, with metrics."),
    "threads": ("strata.cli.host_threads:threads", "Which live thread belongs to which pool and layer, and why."),
    "undo": ("strata.cli.host_apply:undo", "Put back what was there before apply, also after a crash."),
}


@click.group(cls=LazyGroup, table=HOST)
def host() -> None:
    """Say why training loses CPU time on this machine, and give threads that matter room."""
