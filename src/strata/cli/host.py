"""`strata host`: one table of what concerns the CPU cores of one machine, each imported only when it runs."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.lazy import LazyGroup, Table

HOST: Final[Table] = {
    "apply": ("strata.cli.host_apply:apply", "Apply the steps of a plain policy; each can be undone."),
    "layers": ("strata.cli.host_layers:layers", "Generate a policy for the threads running here, any kernel."),
    "lint": ("strata.cli.host_lint:lint", "Find what scx_layered silently accepts in a policy."),
    "record": ("strata.cli.host_record:record", "Record the scheduler's events and a snapshot of the machine."),
    "report": ("strata.cli.host_report:report", "Why threads waited for a CPU, who held it, and what to do."),
    "rollout": ("strata.cli.host_rollout:rollout", "Try a policy on attempts of jobs: A/A first, then A/B."),
    "run-layered": ("strata.cli.host_run_layered:run_layered", "Run and supervise scx_layered, with metrics."),
    "threads": ("strata.cli.host_threads:threads", "Classify live threads into pools and layers, with evidence."),
    "undo": ("strata.cli.host_apply:undo", "Restore the state before apply, also after a crash."),
}


@click.group(cls=LazyGroup, table=HOST)
def host() -> None:
    """Explain why training loses CPU time on this machine, and give critical threads CPUs."""
