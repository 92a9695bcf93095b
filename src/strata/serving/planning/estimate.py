"""What the pipelines of an allocation give a job: tokens/s, decode time, time to the first token, requests/s.

Times are those of an idle pipeline at the demanded batch; how long requests wait is for `strata serve simulate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from strata.decision import Reason, Trust, worst
from strata.fleet.fleet import Fleet
from strata.serving.layout import Layout, StageServer
from strata.serving.node import Node
from strata.serving.observe import layout_of
from strata.serving.planning.allocation import Pipeline, performance_of
from strata.serving.planning.planfile import PlannedPipeline, PlannedStage
from strata.serving.planning.pool import NodePool
from strata.serving.planning.service import TAIL
from strata.serving.planning.split import stages_s
from strata.units import show_time
from strata.workload.serving_job import Demand, ServingJob

FULL = 0.995
"""Share of its stages' tokens/s above which a pipeline is said to have enough sequences in flight."""
GROWTH: Final = 1.25
"""Batches are tried in steps of a quarter."""


@dataclass(frozen=True)
class Estimate:
    """A plan's figures: sums over its pipelines, and means over tokens.

    tokens_per_s: of decoding alone, at the demanded batch; no more than KV memory's sequences keep in flight.
    requests_per_s: of the demanded lengths at the best batch; goodput_per_s: those that keep the goals.
    usd_per_hour: of the devices in pipelines. cost_usd_per_mtoken: of a million tokens read and written at
    requests_per_s, with what links bill; goodput_usd_per_mtoken: at goodput_per_s. None: a price is not known.
    link_share: of decode_s on links. tightest: slots, slots needed and share of the stages' tokens/s of the
    pipeline that lacks most KV memory; None where all have enough. missed: the goals that are.
    """

    pipelines: tuple[PlannedPipeline, ...]
    tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float
    decode_s: float
    ttft_s: float
    link_share: float
    tightest: tuple[int, int, float] | None
    missed: tuple[Reason, ...]
    trust: Trust
    usd_per_hour: float | None = None
    cost_usd_per_mtoken: float | None = None
    goodput_usd_per_mtoken: float | None = None

    @property
    def is_good_enough(self) -> bool:
        """Whether some pipelines keep the goals, and get through as many requests as arrive."""
        return self.goodput_per_s > 0 and not any(reason.token == "rate-not-served" for reason in self.missed)


def estimates(
    fleet: Fleet, nodes: Sequence[Node], pool: NodePool, pipelines: Sequence[Pipeline], job: ServingJob
) -> Estimate:
    """Return the figures of some pipelines, of which there is at least one."""
    demand = job.demand
    layout = layout_of(nodes, pipelines, job.model, demand, derating=job.derating)
    servers = {server.node_id: server for server in layout.servers}
    by_id = {node.node_id: node for node in nodes}
    rates = [capacity(layout, [servers[stage.node_id] for stage in stages], demand) for stages in pipelines]
    made = [
        _pipeline(fleet, by_id, pool, servers, layout, stages, job, most)
        for stages, most in zip(pipelines, rates, strict=True)
    ]
    goodput_per_s = sum(each.goodput_per_s for each in made)
    rate = sum(each.tokens_per_s for each in made)
    decode_s = sum(each.tokens_per_s * each.decode_s for each in made) / rate
    on_stages_s = sum(each.tokens_per_s * sum(stage.stage_s for stage in each.stages) for each in made) / rate
    requests_per_s = sum(each.requests_per_s for each in made)
    usd_per_hour = _usd_per_hour(fleet, by_id, made)
    token_usd = sum(
        each.requests_per_s / requests_per_s * _egress_usd_per_token(fleet, each, job.model.hidden_bytes)
        for each in made
        if requests_per_s > 0
    )

    def per_mtoken(rate_per_s: float) -> float | None:
        if usd_per_hour is None or rate_per_s <= 0:
            return None
        return 1e6 * (usd_per_hour / 3600 / (rate_per_s * demand.kv_tokens) + token_usd)

    return Estimate(
        pipelines=tuple(made),
        tokens_per_s=rate,
        requests_per_s=requests_per_s,
        goodput_per_s=goodput_per_s,
        decode_s=decode_s,
        ttft_s=sum(each.tokens_per_s * each.ttft_s for each in made) / rate,
        link_share=max(0.0, 1 - on_stages_s / decode_s),
        tightest=_tightest(made, demand),
        missed=tuple(_missed(made, rates, demand, goodput_per_s)),
        trust=worst(*(each.trust for each in made)),
        usd_per_hour=usd_per_hour,
        cost_usd_per_mtoken=per_mtoken(requests_per_s),
        goodput_usd_per_mtoken=per_mtoken(goodput_per_s),
    )


def _usd_per_hour(fleet: Fleet, nodes: Mapping[str, Node], pipelines: Sequence[PlannedPipeline]) -> float | None:
    """Return the price of all devices in pipelines; None where one of them has none."""
    total = 0.0
    for name in sorted({stage.node for pipeline in pipelines for stage in pipeline.stages}):
        price = fleet.domain(name.rpartition("/")[0]).price_usd_per_device_hour
        if price is None:
            return None
        total += nodes[name].num_devices * price
    return total


def _egress_usd_per_token(fleet: Fleet, pipeline: PlannedPipeline, hidden_bytes: float) -> float:
    """Return what links bill for the hidden state of a token on its way; the token that comes back is left out."""
    domains = [stage.node.rpartition("/")[0] for stage in pipeline.stages]
    links = [fleet.link(a, b) for a, b in pairwise(domains) if a != b]
    return hidden_bytes * sum(link.price_usd_per_byte for link in links if link is not None)


def _pipeline(
    fleet: Fleet, nodes: Mapping[str, Node], pool: NodePool, servers: Mapping[str, StageServer], layout: Layout,
    stages: Pipeline, job: ServingJob, most: RequestRate,
) -> PlannedPipeline:  # fmt: skip
    demand = job.demand
    names = [stage.node_id for stage in stages]
    members, counts = [pool.index[name] for name in names], [stage.end - stage.first for stage in stages]
    performance, steps_s = performance_of(pool, members, counts), stages_s(pool, members, counts)
    served = [servers[name] for name in names]
    slots = min(server.slots for server in served)
    return PlannedPipeline(
        stages=tuple(
            PlannedStage(node=stage.node_id, first=stage.first, end=stage.end, stage_s=step_s, slots=server.slots)
            for stage, step_s, server in zip(stages, steps_s, served, strict=True)
        ),
        slots=slots,
        tokens_per_s=performance.tokens_per_s,
        requests_per_s=most.requests_per_s,
        goodput_per_s=most.goodput_per_s,
        decode_s=performance.decode_s,
        ttft_s=ttft_s(layout, served, demand),
        trust=_trust(fleet, nodes, names, job),
        kv_tokens=min(server.kv_tokens for server in served),
    )


def _trust(fleet: Fleet, nodes: Mapping[str, Node], names: Sequence[str], job: ServingJob) -> Trust:
    """Return the worst of times on the nodes, and of the links between domains in a row."""
    domains = [name.rpartition("/")[0] for name in names]
    links = [fleet.link(a, b) for a, b in pairwise([*domains, domains[0]]) if a != b]
    of_links = (link.trust for link in links if link is not None)
    return worst(*(job.trust_of(nodes[name].accelerator, nodes[name].trust) for name in names), *of_links)


def _tightest(pipelines: Sequence[PlannedPipeline], demand: Demand) -> tuple[int, int, float] | None:
    tightest = None
    for pipeline in pipelines:
        full = demand.batch / max(stage.stage_s for stage in pipeline.stages)
        share = pipeline.tokens_per_s / full
        if share < FULL and (tightest is None or share < tightest[2]):
            tightest = pipeline.slots, math.ceil(full * pipeline.decode_s), share
    return tightest


def _missed(
    pipelines: Sequence[PlannedPipeline], rates: Sequence[RequestRate], demand: Demand, goodput_per_s: float
) -> list[Reason]:
    reasons = []
    for figure, goal, reached in (
        ("TTFT", demand.ttft_goal_s, [pipeline.ttft_s for pipeline in pipelines]),
        ("decode time", demand.tpot_goal_s, [rate.least_tpot_s for rate in rates]),
    ):
        late = [value for value in reached if value > goal]
        if late:
            data = {"count": len(late), "total": len(pipelines), "figure": figure}
            data |= {"reached": show_time(max(late)), "asked": show_time(goal)}
            reasons.append(Reason("goal-missed", data=data))
    fewer = [
        rate.batch_in_time
        for pipeline, rate in zip(pipelines, rates, strict=True)
        if pipeline.decode_s > demand.tpot_goal_s >= rate.least_tpot_s
    ]
    if fewer:
        data = {"count": len(fewer), "total": len(pipelines), "sequences": min(fewer), "batch": demand.batch}
        reasons.append(Reason("batch-above-goal", data=data | {"asked": show_time(demand.tpot_goal_s)}))
    if goodput_per_s < demand.rate_per_s:
        data = {"served": goodput_per_s, "asked": demand.rate_per_s}
        reasons.append(Reason("rate-not-served", data=data))
    return reasons


class RequestRate(NamedTuple):
    """Requests/s at most, and those that keep the goals; the least time a token [s], of a sequence alone.

    batch_in_time: sequences a step with which most keep the goal of a token; 0 where none does.
    """

    requests_per_s: float
    goodput_per_s: float
    least_tpot_s: float
    batch_in_time: int


def ttft_s(layout: Layout, servers: Sequence[StageServer], demand: Demand) -> float:
    """Return a prompt's way along an idle pipeline, and that of its first token back."""
    names = [server.node_id for server in servers]
    reading_s = sum(server.prefill.at(demand.prompt_tokens) for server in servers)
    there_s = sum(layout.hop(a, b).at(demand.prompt_tokens) for a, b in pairwise(names))
    return servers[0].request_s + reading_s + there_s + layout.hop(names[-1], names[0]).at(1)


def capacity(layout: Layout, servers: Sequence[StageServer], demand: Demand) -> RequestRate:
    """Return what a pipeline of servers, in their order, gets through at the best batch.

    With b sequences a step, each reads one prompt for all its tokens, so a step carries b / output prompts as
    well: a stage takes decode(b) + b / output * prompt, a token all stages and hops, less its own prompt, read
    before. No more sequences are in flight than the KV memory of the tightest stage holds. Prompts wait at the
    slowest stage as in `service.py`.
    """
    prompts_s = [server.prefill.at(demand.prompt_tokens) for server in servers]
    ring, slots = layout.ring([server.node_id for server in servers]), min(server.slots for server in servers)
    own_s = sum(prompts_s) / demand.output_tokens
    most = within = least_s = 0.0
    batch, batch_in_time = 1, 0
    while batch <= slots:
        steps_s = [
            server.token_s(batch) + batch / demand.output_tokens * prompt_s
            for server, prompt_s in zip(servers, prompts_s, strict=True)
        ]
        token_s = sum(steps_s) + ring.at(batch)
        rate = min(batch / max(steps_s), slots / token_s) / demand.output_tokens
        most = max(most, rate)
        least_s = least_s or token_s - own_s
        if token_s - own_s <= demand.tpot_goal_s and rate > within:
            within, batch_in_time = rate, batch
        batch = slots if batch < slots < batch * GROWTH else max(batch + 1, int(batch * GROWTH))
    within *= _kept(ttft_s(layout, servers, demand), max(prompts_s), demand.ttft_goal_s)
    return RequestRate(most, within, least_s, batch_in_time)


def _kept(idle_s: float, slowest_s: float, goal_s: float) -> float:
    """Return which share of its rate a pipeline may serve for 95 of 100 first tokens to be in time."""
    if goal_s == math.inf:
        return 1.0
    mean_wait_s = max(0.0, goal_s - idle_s) / TAIL
    return mean_wait_s / (mean_wait_s + slowest_s)
