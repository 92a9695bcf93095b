"""`strata whatif`: plan as things are and as they would be; the two decisions side by side."""

from __future__ import annotations

from typing import Any

import click

from strata.cli.completing import ANY_JOB, FLEET
from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import TIME_OR_0
from strata.cli.whatif_table import NONE, points, serving_figures, show_changes
from strata.units import show_bytes, show_count, show_time, show_usd


@click.command()
@click.argument("fleet", type=FLEET)
@click.argument("job", type=ANY_JOB)
@click.option("--set", "settings", multiple=True, required=True, metavar="PATH=VALUE", help="May be repeated.")
@click.option("--time-limit", type=TIME_OR_0, default="30s", help="Stop either search after so long.")
@output_option
def whatif(fleet: str, job: str, settings: tuple[str, ...], time_limit: float, output: str) -> int:
    """Plan a training or serving JOB on a FLEET as they are, and again with something set to another value.

    \b
    link.A-B.KEY     bandwidth, latency, rtt or price, both directions (A>B: one)
    domain.NAME.KEY  num_gpus, gpus_per_node, accelerator, price,
                     intra_bandwidth, network_bandwidth or uplink
    job.KEY          global_batch, sequence, precision, optimizer, recompute,
                     schedules, zero, expert_imbalance, local_steps, compress,
                     minimize, weights, efficiency, or limits.cost,
                     .tokens_per_s, .domains, .memory_headroom, or
                     parallel.tensor, .pipeline, .data, .microbatch, .context,
                     .expert, .virtual_stages, .stages (A:2,B:6),
                     or software.framework, .dispatcher, .token_drop,
                     .overlap_experts, .cuda_graphs, .compiled,
                     .async_tensor_parallel, .fused_loss, .gradients
    of serving jobs  prompt, output, batch, rate, goals.ttft, goals.tpot,
                     precision.weights, .kv, efficiency.flops, .bandwidth,
                     memory_headroom, strategy

    \b
    strata whatif aws10 opt-350m --set link.Seoul-Ireland.bandwidth=1Gbps
    strata whatif fleet.yaml job.yaml --set domain.West=none --set job.minimize=cost
    strata whatif aws10 serve-llama-3.1-70b --set job.precision.weights=fp8

    A saved serving plan may stand for its JOB: both are then planned for its goal, by its strategy.
    `link.A-B=none` and `domain.NAME=none` take a link or a domain away; a link that is not there is added by
    its bandwidth and latency. Exits 3 where no plan fits then, 4 where that of a serving job misses its goals or
    rate, 6 where the time limit passed first.
    """
    from strata.api import whatif as api

    data = api.whatif(fleet, job, *settings, time_limit_s=time_limit, progress=progress)
    figures = serving_figures if api.is_serving(job) else _figures
    emit(data, output, show_changes(data, figures(data)))
    if data["new"]["plan"] is None:
        return 3
    return 0 if data["new"].get("is_good_enough", True) else 4


def _figures(data: dict[str, Any]) -> list[list[str]]:
    """Return a row a figure: its name, how it is now, how it would be, and the change."""
    old, new, moved = data["old"]["plan"], data["new"]["plan"], data["difference"]

    def both(key: str, show: Any) -> list[str]:
        sides = [side and side[key] for side in (old, new)]
        return [NONE if value is None else show(value) for value in sides]

    def times(key: str) -> str:
        ratio = moved[f"{key}_ratio"]
        return "" if ratio is None else f"{ratio:.2f}x"

    more_wan = moved["wan_bytes_per_step_difference"]
    wan = f"{'-' if more_wan < 0 else '+'}{show_bytes(abs(more_wan))}" if more_wan else ""
    return [
        ["plan", *both("kind", str), "same" if moved["same_plan"] else ""],
        ["step time", *both("step_time_s", show_time), times("step_time_s")],
        ["tokens/s", *both("tokens_per_s", show_count), times("tokens_per_s")],
        ["utilisation", *both("utilization", "{:.1%}".format), points(moved["utilization_difference"])],
        ["GPUs", *both("num_devices", str), ""],
        ["WAN a step", *both("wan_bytes_per_step", show_bytes), wan],
        ["$/Mtoken", *both("cost_usd_per_mtoken", show_usd), times("cost_usd_per_mtoken")],
        ["trust", *both("trust", str), ""],
    ]
