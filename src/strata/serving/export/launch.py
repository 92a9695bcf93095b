"""What the launch scripts of all engines share: how a pipeline becomes ranks, and the head of a script.

Engines have one tensor-parallel size for all stages of a pipeline. It is the largest that divides the devices of
each node and the model's heads; a node with more devices than that runs several pipeline ranks, its layers split
between them, unless they stay together (Gemma 3n): then devices stay idle. So every device works and holds what
was planned; a token passes these ranks one after the other.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from strata.errors import Infeasible, UsageError
from strata.fleet.catalogue import card_named
from strata.serving.planning.planfile import PlannedNode, PlannedPipeline, PlannedService, ServingPlan
from strata.workload.heads import shares_evenly
from strata.workload.script import comment, slugs


@dataclass(frozen=True, slots=True)
class EngineFiles:
    """Rendered files by name; `notes` say what of the plan the engine does otherwise, or needs besides."""

    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineHost:
    """One node of a pipeline: the layers of each pipeline rank it runs, and the number of its first rank."""

    node: PlannedNode
    layers: tuple[int, ...]
    first_rank: int

    @property
    def is_whole(self) -> bool:
        """Whether all devices of the machine are the node's."""
        return self.node.first_device is None

    @property
    def first_device(self) -> int:
        """The first of its devices on the machine."""
        return self.node.first_device or 0

    @property
    def part(self) -> int:
        """Which group of its machine it is: what keeps default ports apart."""
        return self.first_device // self.node.num_devices


@dataclass(frozen=True, slots=True)
class Ranks:
    """A pipeline as an engine runs it, stage by stage."""

    number: int
    tensor_parallel: int
    hosts: tuple[EngineHost, ...]
    pipeline: PlannedPipeline

    @property
    def partition(self) -> str:
        """Layers of each pipeline rank, as both engines read them: `20,20,40`."""
        return ",".join(str(count) for host in self.hosts for count in host.layers)

    @property
    def pipeline_parallel(self) -> int:
        """Pipeline ranks of all nodes."""
        return sum(len(host.layers) for host in self.hosts)

    def context(self, job: PlannedService) -> tuple[int, str]:
        """Return the most tokens of a request, and what sets that limit.

        The means of the plan would refuse every longer request. An engine does not start where its KV memory
        cannot hold one request of the longest length, so what the tightest stage holds is the other limit.
        """
        limit, held = job.context_limit, self.pipeline.kv_tokens
        if held and (not limit or held < limit):
            return held, "what the KV memory of the tightest stage holds"
        if limit:
            return limit, "the limit of the job or its model"
        return job.context_tokens, "mean prompt and output: neither job nor model states a limit"

    @property
    def dtype(self) -> str | None:
        """What activations are in; None: what the model's are. vLLM refuses bf16 on cards without units."""
        cards = [card_named(host.node.accelerator) for host in self.hosts]
        return "half" if any(card is not None and not card.has_bf16 for card in cards) else None

    def backend(self, place: str) -> str:
        """Return what a gateway is given to reach it at `HOST:PORT`."""
        return f"http://{place},slots={max(1, self.pipeline.slots)}"

    def port(self, first: int) -> int:
        """Return a default port that no other pipeline with its head on the same machine has."""
        return first + self.hosts[0].part

    @property
    def has_ray(self) -> bool:
        """Whether a Ray cluster can run it: Ray counts the devices of whole machines."""
        return len(self.hosts) > 1 and self.is_even and all(host.is_whole for host in self.hosts)

    @property
    def is_even(self) -> bool:
        """Whether every node runs as many ranks: then one process starts all of a node."""
        return len({len(host.layers) for host in self.hosts}) == 1

    def processes(self, host: EngineHost) -> list[tuple[int, int, int]]:
        """Return (node rank, number of node ranks, first device or -1 for all) of each process of a host."""
        if self.is_even:
            return [(self.hosts.index(host), len(self.hosts), -1 if host.is_whole else host.first_device)]
        return [
            (host.first_rank + i, self.pipeline_parallel, host.first_device + i * self.tensor_parallel)
            for i in range(len(host.layers))
        ]


def rendered(
    plan: ServingPlan, script: Callable[[ServingPlan, Ranks, EngineHost], str], *, engine: str, port: int
) -> EngineFiles:
    """Return the scripts of all nodes, and the gateway's before them. Raises as `ranks_of` does."""
    every = ranks_of(plan)
    files = {script_name(ranks, host): script(plan, ranks, host) for ranks in every for host in ranks.hosts}
    files["gateway.sh"] = _gateway_script(every, port=port)
    return EngineFiles(files, tuple(_shape_notes(plan, every, engine=engine)))


def ranks_of(plan: ServingPlan) -> tuple[Ranks, ...]:
    """Return all pipelines as ranks. Raises Infeasible where there are none, UsageError where vendors mix."""
    if not plan.pipelines:
        raise Infeasible(f"{plan.name}: the plan has no pipelines", hint="strata explain PLAN says why")
    return tuple(_ranks(plan, number, pipeline) for number, pipeline in enumerate(plan.pipelines, 1))


def _ranks(plan: ServingPlan, number: int, pipeline: PlannedPipeline) -> Ranks:
    nodes = [plan.node(stage.node) for stage in pipeline.stages]
    vendors = sorted({node.vendor for node in nodes if node.vendor})
    if len(vendors) > 1:
        raise UsageError(
            f"pipeline {number} has devices of {' and '.join(vendors)}; engines support one vendor per pipeline",
            hint="plan each vendor separately (one fleet file each), and put both plans behind one gateway; "
            "or start strata's own workers, which mix: strata serve worker",
        )
    most = math.gcd(plan.job.num_heads, *(node.num_devices for node in nodes))
    degrees = (size for size in range(most, 0, -1) if most % size == 0)
    tensor = next(size for size in degrees if shares_evenly(size, plan.job.kv_heads))
    shares = []
    for node, stage in zip(nodes, pipeline.stages, strict=True):
        layers, parts = stage.end - stage.first, node.num_devices // tensor
        parts = 1 if plan.job.is_whole else min(parts, layers)
        shares.append(tuple(layers // parts + (i < layers % parts) for i in range(parts)))
    firsts = [0, *accumulate(map(len, shares))]
    hosts = tuple(EngineHost(*entry) for entry in zip(nodes, shares, firsts[:-1], strict=True))
    return Ranks(number, tensor, hosts, pipeline)


def _shape_notes(plan: ServingPlan, every: Sequence[Ranks], *, engine: str) -> Iterator[str]:
    """Yield what an engine's one tensor-parallel size changes of the plan, and what else to know of it."""
    for ranks in every:
        split = [host for host in ranks.hosts if len(host.layers) > 1]
        idle = sum(host.node.num_devices - len(host.layers) * ranks.tensor_parallel for host in ranks.hosts)
        if not split and not idle:
            continue
        devices = " and ".join(map(str, sorted({host.node.num_devices for host in ranks.hosts}, reverse=True)))
        text = (
            f"pipeline {ranks.number}: {engine} has one tensor-parallel size for all stages; with nodes of "
            f"{devices} devices and {plan.job.num_heads or 'unknown'} heads to divide it is "
            f"{ranks.tensor_parallel}"
        )
        if split:
            runs = ", ".join(f"{host.node.id} runs {len(host.layers)} ranks" for host in split)
            text += f", so {runs}: a token takes longer there than planned"
        yield text + (f"; {idle} devices stay idle" if idle else "")
    for context, why in sorted({ranks.context(plan.job) for ranks in every}):
        yield f"requests of more than {context} tokens are refused ({why}); CONTEXT sets another limit"
    if plan.job.weights not in ("bf16", "fp8"):
        yield (
            f"the plan has {plan.job.weights} weights: MODEL must be a checkpoint quantised so ({engine} reads "
            "how from its config.json)"
        )


def script_name(ranks: Ranks, host: EngineHost) -> str:
    """Return the file name of a node's script; the number of the stage keeps it different."""
    stage = ranks.hosts.index(host) + 1
    return f"pipeline-{ranks.number}-stage-{stage}-{slugs([host.node.id])[0]}.sh"


def script_head(
    plan: ServingPlan, ranks: Ranks, host: EngineHost, *, engine: str, variables: Sequence[str]
) -> str:
    """Return the top of a node's script: what it is, its variables, and the ones that must be set."""
    stage, many = ranks.hosts.index(host) + 1, len(ranks.hosts) > 1
    planned = ranks.pipeline.stages[stage - 1]
    head = ranks.hosts[0].node.id
    lines = [
        f"{engine}, pipeline {ranks.number} of {len(plan.pipelines)}, stage {stage} of {len(ranks.hosts)}: node "
        f"{host.node.id} ({host.node.num_devices} x {host.node.accelerator}), layers {planned.first} to "
        f"{planned.end - 1} of {plan.job.num_layers}.",
        "Written by strata export. "
        + ("Run the scripts of a pipeline on their nodes at about the same time." if many else ""),
        f"  MODEL        folder or Hugging Face name of {plan.job.model}" + (", the same on every node" * many),
    ]
    if many:
        lines.append(f"  HEAD_ADDR    address of {head} (stage 1), as the other nodes reach it")
    context, why = ranks.context(plan.job)
    lines += [
        f"  CONTEXT      most tokens of a request, prompt and output (default {context}:",
        f"               {why})",
    ]
    text = comment([*lines, *variables])
    required = f': "${{MODEL:?set it to the folder or Hugging Face name of {_plain(plan.job.model)}}}"\n'
    if many:
        required += f': "${{HEAD_ADDR:?set it to the address of {_plain(head)}}}"\n'
    return f"#!/usr/bin/env bash\n{text}set -euo pipefail\n{required}"


def _gateway_script(every: Sequence[Ranks], *, port: int) -> str:
    """Return the script that puts `strata serve gateway` before all pipelines, each as one whole backend."""
    head = comment(
        [
            "One address for all pipelines: each is a whole backend of the gateway, which routes requests.",
            "Written by strata export. Arguments go to the gateway, for example --host 0.0.0.0 --port 8080.",
            *(f"  HEAD_{ranks.number}  address of {ranks.hosts[0].node.id}" for ranks in every),
            *(f"  PORT_{ranks.number}  PORT of its script (default {ranks.port(port)})" for ranks in every),
        ]
    )
    required = "".join(
        f': "${{HEAD_{ranks.number}:?set it to the address of {_plain(ranks.hosts[0].node.id)}}}"\n'
        for ranks in every
    )
    # The engine itself says which model it serves.
    places = [f"$HEAD_{ranks.number}:${{PORT_{ranks.number}:-{ranks.port(port)}}}" for ranks in every]
    backends = arguments(
        *(("--backend", Shell(ranks.backend(place))) for ranks, place in zip(every, places, strict=True))
    )
    return f'#!/usr/bin/env bash\n{head}set -euo pipefail\n{required}exec strata serve gateway{backends} "$@"\n'


def visible_devices(host: EngineHost, first: int, count: int) -> str:
    """Return the variable that shows a process some devices only, with a space after it."""
    name = {"AMD": "HIP_VISIBLE_DEVICES", "Huawei": "ASCEND_RT_VISIBLE_DEVICES"}.get(host.node.vendor)
    return f"{name or 'CUDA_VISIBLE_DEVICES'}={','.join(map(str, range(first, first + count)))} "


def run_all(commands: Sequence[tuple[str, str]]) -> str:
    """Return shell lines that run commands, each with its variables before it: one in place, more side by side."""
    if len(commands) == 1:
        ((variables, command),) = commands
        return f"{variables}exec {command}\n" if not variables else f"exec env {variables}{command}\n"
    started = "".join(f"{variables}{command} &\n" for variables, command in commands)
    # The first that ends takes the others with it: a pipeline with a missing rank only waits.
    return f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{started}wait -n\n"


class Shell(str):
    """A value that the shell reads, in double quotes; anything else is quoted whole: names come from files."""


def arguments(*pairs: tuple[str, str | int | None]) -> str:
    """Return command-line arguments, one a line: names with None are left out, those with "" stand alone."""
    shown = []
    for name, value in pairs:
        if value is not None:
            text = f'"{value}"' if isinstance(value, Shell) else shlex.quote(str(value))
            shown.append(f" \\\n  {name}" + (f" {text}" if value != "" else ""))
    return "".join(shown)


def _plain(text: str) -> str:
    """Return a name without what the shell would read in it."""
    return "".join(char if char.isalnum() or char in " ._/:-" else "_" for char in text)
