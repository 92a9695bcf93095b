"""Scenario files: re-planning under Markov links as reward tables, the paths to run, and reference averages.

A benchmark's file may carry more than is read here: unknown keys are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import numpy as np
from pydantic import ConfigDict, Field

from strata.errors import Fault
from strata.files import Document, FileModel

MOST_STATES: Final = 200_000
"""Joint states of the links that are still solved exactly (memory: states x plans x 8 bytes, a few times)."""

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Index = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0.0)]


class _Loose(FileModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class ScenarioLinkEntry(_Loose):
    """One link: its levels relative to nominal, and the chance to go from each to each in a step."""

    between: Annotated[list[Index], Field(min_length=2, max_length=2)]
    levels: Annotated[list[Positive], Field(min_length=1)]
    transition: list[list[Share]]


class ScenarioPlanEntry(_Loose):
    """A plan: the domains it uses, and its kind in words."""

    domains: Annotated[list[Index], Field(min_length=1)]
    kind: str = ""


class PathsEntry(_Loose):
    """The paths every policy is run on: a generator's seed and the size."""

    episodes: Count
    steps: Count
    seed: Index


class ScenarioEntry(_Loose):
    """One scenario. `reward[state][plan]`, states in product order of the links, the last fastest."""

    name: str
    domains: Annotated[list[dict[str, object]], Field(min_length=1)]
    links: list[ScenarioLinkEntry]
    decision_interval_s: Positive
    switch_s: Annotated[float, Field(ge=0.0)]
    plans: Annotated[list[ScenarioPlanEntry], Field(min_length=1)]
    reward: list[list[float]]
    start_plan: Index
    paths: PathsEntry


class ScenarioFile(_Loose):
    """All scenarios of a file."""

    scenarios: Annotated[list[ScenarioEntry], Field(min_length=1)]


def faults(document: Document, number: int, entry: ScenarioEntry) -> Iterator[Fault]:
    """Yield what is wrong between values of a scenario that are right alone."""
    here = ("scenarios", number)
    states = 1
    for k, link in enumerate(entry.links):
        size = len(link.levels)
        states *= size
        if [len(row) for row in link.transition] != [size] * size:
            yield document.fault(
                (*here, "links", k, "transition"), f"should be {size} rows of {size}, as the levels"
            )
        elif not np.allclose(np.sum(link.transition, axis=1), 1.0, atol=1e-6):
            yield document.fault((*here, "links", k, "transition"), "each row should sum to 1")
        if max(link.between) >= len(entry.domains):
            yield document.fault((*here, "links", k, "between"), f"there are {len(entry.domains)} domains")
    if states > MOST_STATES:
        yield document.fault(
            (*here, "links"), f"{states:,} joint states; up to {MOST_STATES:,} are solved exactly"
        )
    elif len(entry.reward) != states:
        yield document.fault((*here, "reward"), f"should be {states} rows, one a joint state of the links")
    elif any(len(row) != len(entry.plans) for row in entry.reward):
        yield document.fault((*here, "reward"), f"each row should have {len(entry.plans)} rewards, one a plan")
    pairs = {frozenset(link.between) for link in entry.links}
    for k, plan in enumerate(entry.plans):
        if max(plan.domains) >= len(entry.domains):
            yield document.fault((*here, "plans", k, "domains"), f"there are {len(entry.domains)} domains")
        elif len(plan.domains) > 1 and not any(pair <= set(plan.domains) for pair in pairs):
            yield document.fault((*here, "plans", k, "domains"), "no link connects these domains")
    if entry.start_plan >= len(entry.plans):
        yield document.fault((*here, "start_plan"), f"there are {len(entry.plans)} plans")
    if entry.switch_s > entry.decision_interval_s:
        yield document.fault((*here, "switch_s"), "a switch is longer than the decision interval")
