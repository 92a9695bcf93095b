"""Applying and undoing in a line, steps, and files of steps."""

from __future__ import annotations

import json

from strata.host.apply.act import apply
from strata.host.apply.journal import opened
from strata.host.apply.undo import undo
from strata.host.policy.step import Step
from tests.host.pretend_kernel import policy

STEPS = policy()
IRQ = "/proc/irq/24/smp_affinity_list"


def applied(folder, kernel, steps=STEPS):
    with opened(folder) as journal:
        return apply(steps, kernel, journal)


def undone(folder, kernel, **more):
    with opened(folder) as journal:
        return undo(kernel, journal, **more)


def step(path, value, act="write"):
    return Step(act, path, value, "as told", "rest")


def written(folder, steps):
    path = folder / "policy.json"
    path.write_text(json.dumps({"steps": steps, "left_out": []}))
    return str(path)
