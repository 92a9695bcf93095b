"""A serving plan as people read it: pipelines, what they give, reasons, unused nodes, and what to run next."""

from __future__ import annotations

from typing import Any, Final

from strata.api.explain import who
from strata.cli.plan_table import show_gap, show_reasons
from strata.tables import Shown, rows
from strata.units import show_count, show_time, show_usd

SHOWN: Final = 8
"""Groups of like pipelines, and of unused nodes, in a table; JSON has all."""


def show_serving(data: dict[str, Any], *, saved: str = "", next_command: bool = True) -> Shown:
    """Print an answer (the dict of `ServingAnswer.to_dict`) in 80 columns."""
    if not data["pipelines"]:
        yield f"no plan fits {data['name']}"
        yield from show_reasons(data["reasons"])
        return
    yield from _pipelines(data)
    yield from _figures(data)
    yield ""
    for note in data["job"].get("notes", []):
        yield f"  note: {note}"
    yield from show_reasons(data["reasons"])
    yield from _why_not(data)
    yield from _unused(data["unused"])
    if next_command:
        yield from _next(data, saved)


def _pipelines(data: dict[str, Any]) -> Shown:
    """Print the pipelines, those of like figures once."""
    cards = {node["id"]: (node["accelerator"], node["num_devices"]) for node in data["fleet"]["nodes"]}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for pipeline in data["pipelines"]:
        shape = tuple(
            (*cards[stage["node"]], stage["first"], show_time(stage["stage_s"]), stage["slots"])
            for stage in pipeline["stages"]
        )
        groups.setdefault((shape, show_time(pipeline["decode_s"])), []).append(pipeline)
    ordered = sorted(groups.values(), key=lambda like: -sum(pipeline["tokens_per_s"] for pipeline in like))
    body: list[list[str]] = []
    for like in ordered[:SHOWN]:
        pipeline = like[0]
        for number, stage in enumerate(pipeline["stages"]):
            whole = [
                show_count(pipeline["tokens_per_s"]),
                show_time(pipeline["decode_s"]),
                show_time(pipeline["ttft_s"]),
                pipeline["trust"],
            ]
            body.append(
                [
                    str(len(like)) if number == 0 else "",
                    stage["node"],
                    f"{stage['first']}-{stage['end'] - 1}",
                    show_time(stage["stage_s"]),
                    str(stage["slots"]),
                    *(whole if number == 0 else [""] * len(whole)),
                ]
            )
    headers = ["pipelines", "such as", "layers", "stage", "KV slots", "tok/s", "decode", "TTFT", "trust"]
    yield rows(headers, body, right=[0, 3, 4, 5, 6, 7])
    if len(ordered) > SHOWN:
        left = sum(map(len, ordered[SHOWN:]))
        yield f"  and {left} pipelines of {len(ordered) - SHOWN} other kinds: -o json has all"


def _reached(figures: dict[str, Any]) -> str:
    bandwidth, flops = (figures[f"{name}_efficiency"] for name in ("bandwidth", "flops"))
    if bandwidth is None and flops is None:
        return "what kernels reach on each card"
    shares = ("what kernels reach" if share is None else f"{share:.0%}" for share in (bandwidth, flops))
    return "{} of memory bandwidth and {} of peak FLOPs".format(*shares)


def _figures(data: dict[str, Any]) -> Shown:
    figures, job = data["figures"], data["job"]
    if figures is None:
        return
    is_cut = any(node["first_device"] is not None for node in data["fleet"]["nodes"] if "first_device" in node)
    noun = "device group" if is_cut else "node"
    used = sum(len(pipeline["stages"]) for pipeline in data["pipelines"])
    lines = [
        f"{_count(len(data['pipelines']), 'pipeline')} on {used} of {_count(len(data['fleet']['nodes']), noun)} "
        f"({data['strategy']}, goal {data['goal']}): {show_count(figures['tokens_per_s'])} tokens/s, "
        f"decode {show_time(figures['decode_s'])}, TTFT {show_time(figures['ttft_s'])} "
        f"(means at {figures['batch']} sequences a step, no queue)",
        f"at most {show_count(figures['requests_per_s'])} requests/s of {job['prompt_tokens']}+"
        f"{job['output_tokens']} tokens, {show_count(figures['goodput_per_s'])} within the goals · "
        f"trust: {figures['trust']}",
        f"at {_reached(figures)} ({figures['efficiencies_trust']})",
    ]
    if figures.get("cost_usd_per_mtoken") is not None:
        within, hourly = figures["goodput_usd_per_mtoken"], figures["usd_per_hour"]
        lines.insert(
            2,
            f"{show_usd(figures['cost_usd_per_mtoken'])} per million tokens read and written at that rate"
            + (f", {show_usd(within)} within the goals" if within is not None else "")
            + (f" ({show_usd(hourly)}/h)" if hourly is not None else ""),
        )
    if figures["gap"] is not None:
        gap, bound = show_gap(figures["gap"]), show_count(figures["bound_tokens_per_s"])
        lines.append(f"stages within {gap} of the upper bound, {bound} tokens/s")
    for line in lines:
        yield f"  {line}"


def _why_not(data: dict[str, Any]) -> Shown:
    if data["alternatives"]:
        yield "why not:"
    for item in data["alternatives"]:
        cost, figures = item["cost"], ""
        if cost.get("num_pipelines") and {"tokens_per_s", "decode_s"} <= cost.keys():
            figures = (
                f" ({_count(cost['num_pipelines'], 'pipeline')}, {show_count(cost['tokens_per_s'])} tokens/s, "
                f"decode {show_time(cost['decode_s'])})"
            )
        yield f"  {item['name']}{figures}: " + "; ".join(reason["text"] for reason in item["reasons"])


def _unused(unused: list[dict[str, Any]]) -> Shown:
    if unused:
        yield "unused:"
    for item in unused[:SHOWN]:
        yield f"  {who(item)}: {item['reason']['text'].removeprefix(item['domain'] + ': ')}"
    if len(unused) > SHOWN:
        yield f"  and {len(unused) - SHOWN} more domains: -o json has all"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _next(data: dict[str, Any], saved: str) -> Shown:
    fleet, job = data["inputs"].get("fleet", "FLEET"), data["inputs"].get("job", "JOB")
    yield f"next: strata serve simulate {fleet} {job}"
    if any(reason["token"] == "vendor-mix" for reason in data["reasons"]):  # every export would refuse it
        yield "      strata serve gateway   and, on each node: strata serve worker"
    elif saved:
        yield f"      strata export {saved} --to vllm   or: strata explain {saved}"
    else:
        yield f"      strata plan serve {fleet} {job} --save plan.json"
        yield "      strata export plan.json --to vllm"
