"""`strata testbed`: real training steps over shaped links, beside what the cost model predicts for them."""

from __future__ import annotations

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import TIME, TIME_OR_0, Quantity, Whole, choice


@click.command()
@click.option("--domains", type=Whole(2, 16), default=2, help="Number of domains; each takes a core.")
@click.option(
    "--bandwidth", type=Quantity("bandwidth"), default="200Mbps", help="Bandwidth of every link, each way."
)
@click.option("--latency", type=TIME_OR_0, default="0ms", help="Latency of every link, one way.")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    type=choice("pp", "dp"),
    help="One pipeline stage per domain (pp), or one replica per domain (dp); default: both.",
)
@click.option("--calibrate", is_flag=True, help="Measure this machine first, on other plans and links.")
@click.option("--steps", type=Whole(min=3), default=7, help="Steps measured, after warm-up.")
@click.option("--time-limit", type=TIME, default="120s", help="Give up after this time and remove all namespaces.")
@output_option
def testbed(
    domains: int,
    bandwidth: float,
    latency: float,
    plans: tuple[str, ...],
    calibrate: bool,
    steps: int,
    time_limit: float,
    output: str,
) -> None:
    """Train a tiny transformer for real between network namespaces, and predict it.

    Needs Linux, root, iproute2 and torch; exits with 5 where one is missing. Every domain is a namespace with one
    process; links are shaped by the kernel (tc tbf; latency by netem, or by a relay process where the kernel has
    none). Nothing outside these namespaces is touched, and they are removed however the command ends.

    \b
    strata testbed --domains 2 --bandwidth 100Mbps --latency 10ms
    """
    from strata.evaluation.testbed.namespaces import LinkShape
    from strata.evaluation.testbed.run import run, show

    shape = LinkShape(bandwidth, latency)
    data = run(
        plans or ("pp", "dp"), shape, domains=domains, steps=steps, is_calibrated=calibrate,
        time_limit_s=time_limit
    ).to_dict()  # fmt: skip
    emit(data, output, show(data["rows"]))
    if not calibrate:
        click.echo("the machine's speed is assumed: --calibrate measures it first", err=True)
