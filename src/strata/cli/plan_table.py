"""An answer of the planner as people read it: plans, comparison, proof, reasons, and what to run next."""

from __future__ import annotations

from typing import Any, Final

from strata.cli.given_table import show_given
from strata.cli.plan_legend import show_assumed, show_legend
from strata.pictures.labels import LABELS
from strata.tables import Shown, rows
from strata.units import show_bytes, show_count, show_time, show_usd
from strata.workload.plan import TrainingPlan

SPENT: Final = ("compute", "bubble", "wan", "sync")


def show_plans(data: dict[str, Any], *, saved: str | None = None, next_command: bool = True) -> Shown:
    """Print a plan file's content in 80 columns; `saved` is where it was written to."""
    yield from show_table(data)
    yield from show_comparison(data, saved=saved, next_command=next_command)


def show_table(data: dict[str, Any]) -> Shown:
    """Print what there is once the search is over."""
    if data.get("given"):
        yield from show_given(data["given"])
        yield ""
    if not data["plans"]:
        yield f"no plan fits {data['name']} on {data['fleet']['name']}"
        return
    yield from _plans(data["plans"], data.get("knee"), data.get("given"))
    yield from _proof(data)
    yield from show_assumed(data.get("assumed", ()))


def show_comparison(data: dict[str, Any], *, saved: str | None = None, next_command: bool = True) -> Shown:
    """Print what the plans are compared with, and why they are what they are."""
    if not data["plans"]:
        yield from show_reasons(data["reasons"])
        return
    if data["baselines"]:
        yield ""
        yield from _baselines(data)
    if data.get("front"):
        yield ""
        yield from _front(data["front"])
    if data.get("policy"):
        yield ""
        yield from _policy(data["policy"])
    yield ""
    for note in data["job"].get("notes", []):
        yield f"  note: {note}"
    yield from show_reasons(data["reasons"])
    yield from _why_not(data)
    if next_command:
        yield from _next(data, saved)


def _plans(plans: list[dict[str, Any]], knee: dict[str, Any] | None, given: dict[str, Any] | None) -> Shown:
    at = knee["plan"]["rank"] if knee and knee["plan"]["rank"] > 1 else 0
    body = [_row(f"{'✔' if rank == 1 else '$' if rank == at else ' '} {rank}", plan)
            for rank, plan in ((plan["rank"], plan) for plan in plans)]  # fmt: skip
    if knee and at > len(plans):
        body.append(_row("$", knee["plan"]))
    if given and given["plan"]:
        body.append(_row("given", given["plan"]))
    yield rows(["  #", *_COLUMNS], body, right=range(2, 8))
    best = plans[0]
    spent = " · ".join(f"{part} {best['breakdown_s'][part] / best['step_time_s']:.0%}" for part in SPENT)
    mfu = "" if best.get("mfu") is None else f" · MFU {best['mfu']:.0%}"
    yield f"  plan 1: {spent}{mfu} · trust: {best['trust']}"
    if knee:
        yield _money(knee)
    yield from show_legend(
        [*plans, *([knee["plan"]] if knee else []), *([given["plan"]] if given and given["plan"] else [])]
    )


_COLUMNS: Final = ("plan", "GPUs", "step", "tok/s", "util", "$/Mtok", "WAN/step")


def _row(mark: str, plan: dict[str, Any]) -> list[str]:
    return [
        mark,
        plan["name"] + _inner(plan),
        str(plan["num_devices"]),
        show_time(plan["step_time_s"]),
        show_count(plan["tokens_per_s"]),
        f"{plan['utilization']:.0%}",
        "-" if plan["cost_usd_per_mtoken"] is None else show_usd(plan["cost_usd_per_mtoken"]),
        show_bytes(plan["wan_bytes_per_step"]) if plan["wan_bytes_per_step"] else "0",
    ]


def _money(knee: dict[str, Any]) -> str:
    if knee["plan"]["rank"] == 1:
        return "  plan 1 is also the cheapest within 10 % of its time"
    ratios = f"{knee['cost_ratio']:.2f}x money, {knee['step_time_ratio']:.2f}x time"
    return f"  $: cheapest plan within 10 % of the best time ({ratios})"


def _inner(plan: dict[str, Any]) -> str:
    stages, pipelines = plan["stages"], plan["plan"]["pipelines"]
    tensor = sorted({stage["tensor_parallel"] for stage in stages})
    copies = sorted({pipeline["replicas"] for pipeline in pipelines})
    depth = sorted({len(pipeline["stages"]) for pipeline in pipelines})
    parts = [f"pp{_span(depth)} dp{_span(copies)} tp{_span(tensor)}"]
    if (context := context_degrees(plan))[-1] > 1:
        parts[0] += f" cp{_span(context)} {plan['plan']['context_exchange']}"
    if plan["plan"]["expert_parallel"] > 1:
        parts[0] += f" ep{plan['plan']['expert_parallel']}"
    chunks = plan["plan"]["virtual_stages"]
    schedule = f"interleaved x{chunks}" if plan["schedule"] == "interleaved" else plan["schedule"]
    parts.append(f"mb{plan['microbatch_size']}x{plan['microbatches']} {schedule}")
    if plan["recompute"] != "none":
        parts.append(_recomputed(plan["plan"]))
    if plan["local_steps"] > 1:
        parts.append(f"H={plan['local_steps']}")
    if plan["gradient_compression"] > 1:
        parts.append(f"grad/{plan['gradient_compression']:g}")
    return "\n" + " ".join(parts)


def _recomputed(plan: dict[str, Any]) -> str:
    again, count = TrainingPlan.from_dict(plan).recomputed_layers
    return f"recompute {again}/{count}" if 0 < again < count else "recompute"


def context_degrees(plan: dict[str, Any]) -> list[int]:
    """Return into how many pieces the stages of a plan cut sequences."""
    return sorted({stage["context_parallel"] for item in plan["plan"]["pipelines"] for stage in item["stages"]})


def _span(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"


def _proof(data: dict[str, Any]) -> Shown:
    proof = data["proof"]
    if proof["gap"] is None:
        return
    bound = f" (lower bound {show_time(proof['bound_s'])})" if proof["bound_s"] is not None else ""
    yield (
        f"  optimality gap ≤ {show_gap(proof['gap'])} over all layer splits{bound}; "
        f"{proof['branches']:,} branches, {proof['evaluated']:,} plans evaluated in {show_time(data['search_s'])}"
    )
    partly = [str(rank) for rank in proof.get("rows_searched_in_part", []) if rank <= len(data["plans"])]
    if partly:
        yield f"  searched in part, so that the same domains may do better: plan {', '.join(partly)}"


def show_gap(gap: float) -> str:
    """Return a gap as people read it; below what searches resolve it is that, not a rounder zero."""
    return "0.01 %" if gap < 1e-4 else f"{gap:.2%}".replace("%", " %")


def _baselines(data: dict[str, Any]) -> Shown:
    body = []
    for name, item in data["baselines"].items():
        if not item["found"]:
            body.append([LABELS.get(name, name), _absent(item.get("reason", "")), "", "", ""])
            continue
        body.append(
            [
                LABELS.get(name, name),
                show_time(item["step_time_s"]),
                f"{item['ratio']:.2f}x",
                str(item["num_devices"]),
                show_count(item["device_seconds_per_mtoken"]),
            ]
        )
    best = data["plans"][0]
    ours = best["num_devices"] / best["tokens_per_s"] * 1e6
    body.insert(0, ["strata", show_time(best["step_time_s"]), "1.00x", str(best["num_devices"]), show_count(ours)])
    yield rows(["compared with", "step", "vs strata", "GPUs", "GPU-s/Mtok"], body, right=range(1, 5))


def _absent(reason: str) -> str:
    if "pymoo" in reason:
        return "needs pymoo"
    return "out of time" if "time" in reason else "no plan"


def _policy(policy: dict[str, Any]) -> Shown:
    """Print what the learned policy decided on."""
    explanation, trained = policy["explanation"], policy["trained_at"] or "at a time not recorded"
    yield f"chosen by hi-ppo, trained {trained} (seed {policy['seed']})"
    if explanation is None:
        return
    if explanation["in_use"]:
        verdict = (
            "keep it" if explanation["taken"] == explanation["in_use"] else f"switch to {explanation['taken']}"
        )
        yield f"  in use: {explanation['in_use']}: {verdict}"
    if explanation["keeping_costs"] and explanation["taken"] != explanation["in_use"]:
        spans = ", ".join(
            f"{value:+.2f} {name.replace('_', ' ')}" for name, value in explanation["keeping_costs"].items()
        )
        yield f"  keeping would cost, in steps of the best plan: {spans}"
    if explanation["runner_up"]:
        yield f"  runner-up: {explanation['runner_up']}"
    if explanation["tipped"]:
        named = ", ".join(
            f"{name.replace('_', ' ')} {share:+.2g}" for name, share in explanation["tipped"].items()
        )
        yield f"  what tipped it (logits): {named}"
    for reason in explanation["reasons"]:
        yield f"  {reason['token']}: {reason['text']}"


def _front(front: list[dict[str, Any]]) -> Shown:
    body = [
        [
            show_time(plan["step_time_s"]),
            f"{plan['utilization']:.1%}",
            "-" if plan["cost_usd_per_mtoken"] is None else show_usd(plan["cost_usd_per_mtoken"]),
            str(plan["num_devices"]),
            plan["name"],
        ]
        for plan in front
    ]
    yield rows(["Pareto: step", "util", "$/Mtok", "GPUs", "plan"], body, right=range(4))


def show_reasons(reasons: list[dict[str, Any]]) -> Shown:
    """Print reasons, a line each."""
    for reason in reasons:
        yield f"  {reason['token']}: {reason['text']}"


def _why_not(data: dict[str, Any]) -> Shown:
    partly = [] if data["proof"]["gap"] is None else data["proof"].get("rows_searched_in_part", [])
    shown = [(rank, item) for rank, item in enumerate(data["alternatives"], 2) if item["reasons"]][:4]
    if shown:
        yield "why not:"
    for rank, item in shown:
        texts = [reason["text"] for reason in item["reasons"]]
        if rank in partly and rank > len(data["plans"]):  # of rows the line below the table says so
            texts.append("searched in part, so that it may do better")
        yield f"  {item['name']}: " + "; ".join(texts)


def _next(data: dict[str, Any], saved: str | None) -> Shown:
    if saved and data["plans"][0]["schedule"] == "dualpipev":  # no export runs it
        yield f"next: strata explain {saved}   or: strata simulate {saved} --backend events"
    elif saved:
        target = "torchrun" if context_degrees(data["plans"][0]) == [1] else "megatron"
        yield f"next: strata explain {saved}   or: strata export {saved} --to {target}"
    else:
        fleet, job = data["inputs"]["fleet"], data["inputs"]["job"]
        yield f"next: strata plan train {fleet} {job} --save plan.json && strata explain plan.json"
