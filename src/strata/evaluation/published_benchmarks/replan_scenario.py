"""Scenarios from a file as tables and paths; the form is that of `replan_scenarios.json`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from strata.arrays import Ints
from strata.errors import BadFile
from strata.evaluation.published_benchmarks.replan_schema import ScenarioEntry, ScenarioFile, faults
from strata.files import read_document
from strata.learning.tables.table import LinkChains, ReplanTable


@dataclass(frozen=True, eq=False)
class ReplanScenario:
    """A table and the states [T, E] every policy is run on."""

    table: ReplanTable
    states: Ints


def read_scenarios(path: str | Path) -> list[ReplanScenario]:
    """Read a scenario file. Raises BadFile with all faults and their places."""
    document = read_document(path)
    file = document.check(ScenarioFile)
    problems = [fault for number, entry in enumerate(file.scenarios) for fault in faults(document, number, entry)]
    if problems:
        raise BadFile(problems)
    return [_scenario(entry) for entry in file.scenarios]


def _scenario(entry: ScenarioEntry) -> ReplanScenario:
    chains = LinkChains(
        tuple(np.array(link.levels) for link in entry.links),
        tuple(np.array(link.transition) for link in entry.links),
    )
    number = {frozenset(link.between): k for k, link in enumerate(entry.links)}
    pairs = [[frozenset(pair) for pair in combinations(plan.domains, 2)] for plan in entry.plans]
    alone = [k for k, plan in enumerate(entry.plans) if len(plan.domains) == 1]
    reward = np.array(entry.reward)
    table = ReplanTable(
        name=entry.name,
        reward=reward,
        chains=chains,
        switch_share=entry.switch_s / entry.decision_interval_s,
        start_plan=entry.start_plan,
        plan_links=tuple(tuple(number[pair] for pair in group if pair in number) for group in pairs),
        home_plan=alone[0] if alone else entry.start_plan,
    )
    states = chains.paths(entry.paths.episodes, entry.paths.steps, np.random.default_rng(entry.paths.seed))
    return ReplanScenario(table, states)
