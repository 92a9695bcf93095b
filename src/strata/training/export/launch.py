"""What launch files of all kinds share: file names, the nodes of a domain, the head of a shell script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata.simulate.order import orders
from strata.simulate.timeline import SpanKind
from strata.training.export.ranks import Rank, RankMap
from strata.workload.plan import TrainingPlan
from strata.workload.script import comment, slugs

DUAL_PIPE_HINT: Final = (
    "a program of your own with PyTorch's ScheduleDualPipeV (torch.distributed.pipelining.schedules) or "
    "DeepSeek's dualpipe, its chunks as `strata explain` lists them; or train.schedules: [1f1b, zb-h1] in the job"
)
"""What runs DualPipeV."""


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """Rendered files by name, and the rank map they launch.

    `notes` say, in a sentence each, what of the plan the launcher does otherwise.
    """

    files: Mapping[str, str]
    ranks: RankMap
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DomainNodes:
    """The nodes of one domain: `first_node` is the node rank of the first, `nodes` the ranks on each."""

    domain: str
    slug: str
    first_node: int
    num_nodes: int
    nodes: tuple[tuple[Rank, ...], ...]

    @property
    def processes(self) -> tuple[int, ...]:
        """Processes on each node."""
        return tuple(len(node) for node in self.nodes)


def domain_nodes(ranks: RankMap) -> tuple[DomainNodes, ...]:
    """Return the domains in node order; `num_nodes` counts the nodes of all domains."""
    nodes = ranks.nodes()
    by_domain: dict[str, list[tuple[Rank, ...]]] = {}
    for (domain, _), held in nodes.items():
        by_domain.setdefault(domain, []).append(held)
    domains, first = [], 0
    for domain, slug in zip(by_domain, slugs(by_domain), strict=True):
        domains.append(DomainNodes(domain, slug, first, len(nodes), tuple(by_domain[domain])))
        first += len(by_domain[domain])
    return tuple(domains)


def launch_data(ranks: RankMap, plan: TrainingPlan) -> dict[str, Any]:
    """Return what `ranks.json` holds: the rank map, the plan it is of, and what each stage does in turn, [P][S].

    A turn is F (forward), B (backward) or W (gradients of weights, where they come apart), the microbatch and the
    chunk: `F0.0 F1.0 B0.0 B1.0`.
    """
    turns = [
        [" ".join(f"{_LETTERS[work.kind]}{work.microbatch}.{work.chunk}" for work in stage) for stage in stages]
        for stages in (orders(plan, pipeline) for pipeline in plan.pipelines)
    ]
    return {**ranks.to_dict(), "turns": turns, "plan": plan.to_dict()}


def ranks_json(ranks: RankMap, plan: TrainingPlan) -> str:
    """Return `ranks.json`."""
    return json.dumps(launch_data(ranks, plan), indent=1, ensure_ascii=False) + "\n"


_LETTERS: Final = {SpanKind.FORWARD: "F", SpanKind.BACKWARD: "B", SpanKind.WEIGHT: "W"}


def shell_head(nodes: DomainNodes, *, launcher: str, first: str, notes: Sequence[str], more: Sequence[str]) -> str:
    """Return the top of a launch script of one domain: what it is, its variables, and NODE_INDEX checked."""
    last = nodes.first_node + len(nodes.nodes) - 1
    first_rank, last_rank = nodes.nodes[0][0].rank, nodes.nodes[-1][-1].rank
    ranks = (
        f"ranks {first_rank} to {last_rank}"
        if last_rank - first_rank + 1 == sum(nodes.processes)
        else "ranks as below"
    )
    head = comment(
        [
            f"{launcher}, {nodes.domain}: nodes {nodes.first_node} to {last} of {nodes.num_nodes}, {ranks}.",
            "Written by strata export. Run it once on each node, in all domains at about the same time:",
            "  NODE_INDEX   which node of this domain this is, 0 the first (default 0)",
            f"  MASTER_ADDR  host or address of node 0 of domain {first}, as all other nodes reach it",
            "  MASTER_PORT  a free port there (default 29500)",
            *more,
            *(f"note: {note}" for note in notes),
        ]
    )
    return f"""#!/usr/bin/env bash
{head}set -euo pipefail
: "${{MASTER_ADDR:?set it to the host or address of the first node}}"
MASTER_PORT="${{MASTER_PORT:-29500}}"
NODE_INDEX="${{NODE_INDEX:-0}}"
PROCESSES=({" ".join(map(str, nodes.processes))})  # on each node of this domain
if [[ ! $NODE_INDEX =~ ^[0-9]+$ ]] || ((NODE_INDEX >= ${{#PROCESSES[@]}})); then
  echo "NODE_INDEX=$NODE_INDEX: this domain has nodes 0 to $((${{#PROCESSES[@]}} - 1))" >&2
  exit 2
fi
"""
