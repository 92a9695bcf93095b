"""An answer of the planner as people read it: plans, comparison, proof, reasons, and what to run next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from strata.cli.output import rows
from strata.units import show_bytes, show_count, show_time, show_usd

if TYPE_CHECKING:
    from rich.console import Console

LABELS: Final = {
    "best_single_domain": "best single domain",
    "equal_gpus_one_domain": "as many GPUs, one domain",
    "uniform_split": "uniform split",
    "home_domain": "home domain",
    "mast_like": "MAST-like",
    "sailor_like": "Sailor-like",
    "latency_blind": "latency-blind",
    "random_search": "random search",
    "nsga2": "NSGA-II",
}

NOTATION: Final = (
    "  pp: stages · dp: replicas · tp: GPUs of a stage · mb: microbatch size x number",
    "  util: share of GPU time that computes (not MFU) · trust: source of the figures",
)
"""What the second line of a plan and two columns mean."""

SPENT: Final = ("compute", "bubble", "wan", "sync")


def show_plans(
    console: Console, data: dict[str, Any], *, saved: str | None = None, next_command: bool = True
) -> None:
    """Print a plan file's content in 80 columns; `saved` is where it was written to."""
    if not data["plans"]:
        console.print(f"no plan fits {data['name']} on {data['fleet']['name']}")
        _reasons(console, data["reasons"])
        return
    _plans(console, data["plans"])
    _proof(console, data)
    if data["baselines"]:
        console.print()
        _baselines(console, data)
    if data.get("front"):
        console.print()
        _front(console, data["front"])
    if data.get("policy"):
        console.print()
        _policy(console, data["policy"])
    console.print()
    _reasons(console, data["reasons"])
    _why_not(console, data)
    if next_command:
        _next(console, data["inputs"], saved)


def _plans(console: Console, plans: list[dict[str, Any]]) -> None:
    body = [
        [
            ("✔ " if plan["rank"] == 1 else "  ") + str(plan["rank"]),
            plan["name"] + _inner(plan),
            str(plan["num_devices"]),
            show_time(plan["step_time_s"]),
            show_count(plan["tokens_per_s"]),
            f"{plan['utilization']:.0%}",
            "-" if plan["cost_usd_per_mtoken"] is None else show_usd(plan["cost_usd_per_mtoken"]),
            show_bytes(plan["wan_bytes_per_step"]) if plan["wan_bytes_per_step"] else "0",
        ]
        for plan in plans
    ]
    headers = ["  #", "plan", "GPUs", "step", "tok/s", "util", "$/Mtok", "WAN/step"]
    console.print(rows(headers, body, right=range(2, 8)))
    best = plans[0]
    spent = " · ".join(f"{part} {best['breakdown_s'][part] / best['step_time_s']:.0%}" for part in SPENT)
    console.print(f"  step of plan 1: {spent} · trust: {best['trust']}")
    for line in NOTATION:
        console.print(line)


def _inner(plan: dict[str, Any]) -> str:
    stages, pipelines = plan["stages"], plan["plan"]["pipelines"]
    tensor = sorted({stage["tensor_parallel"] for stage in stages})
    copies = sorted({pipeline["replicas"] for pipeline in pipelines})
    depth = sorted({len(pipeline["stages"]) for pipeline in pipelines})
    parts = [f"pp{_span(depth)} dp{_span(copies)} tp{_span(tensor)}"]
    parts.append(f"mb{plan['microbatch_size']}x{plan['microbatches']} {plan['schedule']}")
    if plan["recompute"] != "none":
        parts.append("recompute")
    if plan["local_steps"] > 1:
        parts.append(f"H={plan['local_steps']}")
    if plan["gradient_compression"] > 1:
        parts.append(f"grad/{plan['gradient_compression']:g}")
    return "\n" + " ".join(parts)


def _span(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"


def _proof(console: Console, data: dict[str, Any]) -> None:
    proof = data["proof"]
    if proof["gap"] is None:
        return
    # A gap below what the search resolves is printed as that, not as a rounder zero.
    gap = "0.01 %" if proof["gap"] < 1e-4 else f"{proof['gap']:.2%}".replace("%", " %")
    bound = f" (lower bound {show_time(proof['bound_s'])})" if proof["bound_s"] is not None else ""
    console.print(
        f"  optimality gap ≤ {gap}{bound}; {proof['branches']:,} branches, {proof['evaluated']} plans "
        f"evaluated in {show_time(data['search_s'])}",
        soft_wrap=False,
    )


def _baselines(console: Console, data: dict[str, Any]) -> None:
    body = []
    for name, item in data["baselines"].items():
        if not item["found"]:
            body.append([LABELS.get(name, name), _absent(item["reason"]), "", "", ""])
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
    console.print(rows(["compared with", "step", "vs strata", "GPUs", "GPU-s/Mtok"], body, right=range(1, 5)))


def _absent(reason: str) -> str:
    if "pymoo" in reason:
        return "needs pymoo"
    return "out of time" if "time" in reason else "no plan"


def _policy(console: Console, policy: dict[str, Any]) -> None:
    """Print what the learned policy decided on."""
    explanation, trained = policy["explanation"], policy["trained_at"] or "at a time not recorded"
    console.print(f"chosen by hi-ppo, trained {trained} (seed {policy['seed']})", soft_wrap=False)
    if explanation is None:
        return
    if explanation["in_use"]:
        verdict = (
            "keep it" if explanation["taken"] == explanation["in_use"] else f"switch to {explanation['taken']}"
        )
        console.print(f"  in use: {explanation['in_use']}: {verdict}", soft_wrap=False)
    if explanation["keeping_costs"] and explanation["taken"] != explanation["in_use"]:
        spans = ", ".join(
            f"{value:+.2f} {name.replace('_', ' ')}" for name, value in explanation["keeping_costs"].items()
        )
        console.print(f"  keeping would cost, in steps of the best plan: {spans}", soft_wrap=False)
    if explanation["runner_up"]:
        console.print(f"  runner-up: {explanation['runner_up']}", soft_wrap=False)
    if explanation["tipped"]:
        named = ", ".join(
            f"{name.replace('_', ' ')} {share:+.2g}" for name, share in explanation["tipped"].items()
        )
        console.print(f"  what tipped it (logits): {named}", soft_wrap=False)
    for reason in explanation["reasons"]:
        console.print(f"  {reason['token']}: {reason['text']}", soft_wrap=False)


def _front(console: Console, front: list[dict[str, Any]]) -> None:
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
    console.print(rows(["Pareto: step", "util", "$/Mtok", "GPUs", "plan"], body, right=range(4)))


def _reasons(console: Console, reasons: list[dict[str, Any]]) -> None:
    for reason in reasons:
        console.print(f"  {reason['token']}: {reason['text']}")


def _why_not(console: Console, data: dict[str, Any]) -> None:
    shown = [item for item in data["alternatives"] if item["reasons"]][:4]
    if shown:
        console.print("why not:")
    for item in shown:
        console.print(f"  {item['name']}: " + "; ".join(reason["text"] for reason in item["reasons"]))


def _next(console: Console, inputs: dict[str, str], saved: str | None) -> None:
    if saved:
        console.print(f"next: strata explain {saved}   or: strata export {saved} --to torchrun")
    else:
        fleet, job = inputs["fleet"], inputs["job"]
        console.print(f"next: strata plan train {fleet} {job} --save plan.json && strata explain plan.json")
