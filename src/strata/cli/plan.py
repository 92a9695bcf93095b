"""`strata plan`: one table of what can be planned, each imported only when it runs."""

from __future__ import annotations

from typing import Final

import click

from strata.cli.lazy import LazyGroup, Table

PLANS: Final[Table] = {
    "train": ("strata.cli.plan_train:train", "Plan a training job: stages onto domains."),
    "serve": ("strata.cli.plan_serve:serve", "Plan the serving of a model: layers onto nodes."),
}


@click.group(cls=LazyGroup, table=PLANS)
def plan() -> None:
    """Plan a job on a fleet: ranked, with the reasons."""
