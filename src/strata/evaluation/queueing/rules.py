"""Ways to run a queue, all in the control loop: they differ in who may pass, which plans there are, who moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strata.control.core import Scheduler
from strata.control.policies import Choose, never
from strata.evaluation.queueing.plans import planner

INTERVAL_S: Final = 3600.0
OURS: Final = "hi_ppo"

RULES: Final[dict[str, Callable[[], Scheduler]]] = {
    "home_domain": lambda: Scheduler(never, planner(spans=False, at_home=True), INTERVAL_S, has_backfill=False),
    "alone": lambda: Scheduler(never, planner(spans=False, at_home=True), INTERVAL_S),
    "fcfs": lambda: Scheduler(never, planner(spans=False), INTERVAL_S, has_backfill=False),
    "mast_like": lambda: Scheduler(never, planner(spans=False), INTERVAL_S),
    "backfill": lambda: Scheduler(never, planner(), INTERVAL_S),
}
"""home_domain: each job waits where it was sent, first come first served. alone: every job for itself, in the
domain it would have if there were no others. fcfs: any one domain, nobody passes. mast_like: any one domain, who
does not delay the first may pass (EASY). backfill: as that, in two domains too."""


def ours(choose: Choose) -> Scheduler:
    """Return the loop as it runs: any plan, whoever does not delay the first may pass, running jobs may move."""
    return Scheduler(choose, planner(), INTERVAL_S)
