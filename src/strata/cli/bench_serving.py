"""`strata bench` of serving models; the bodies are in `strata.evaluation.bench`."""

from __future__ import annotations

import math
from typing import Any

import click

from strata.cli.endings import ended_as_by_ctrl_c
from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import PORT, POSITIVE, TIME_OR_0, Finite, Whole, choice
from strata.errors import INTERRUPTED, UsageError, need


@click.command()
@click.option("--stages", default=4, type=POSITIVE, help="Workers in a row, beside one alone.")
@click.option(
    "--clients", default=(1, 8), type=POSITIVE, multiple=True, help="Requests at a time; may be repeated."
)
@click.option("--requests", default=4, type=POSITIVE, help="Requests of each client.")
@click.option("--tokens", default=64, type=Whole(min=2), help="Tokens of each answer.")
@click.option("--layers", default=12, type=POSITIVE, help="Layers of the made-up model.")
@click.option("--hidden", default=128, type=POSITIVE, help="Its hidden size.")
@output_option
def pipelines(
    stages: int, clients: tuple[int, ...], requests: int, tokens: int, layers: int, hidden: int, output: str
) -> None:
    """Ask one worker and several in a row, all of them processes of this machine, and say what the row costs.

    cpu_ms_per_token is the CPU time of all workers together: what to compare on a machine with other work. hop_s
    is what workers measured of the way to each other; a token has one for each stage. No gateway stands between.

    \b
    strata bench pipelines --clients 1 --clients 8 -o json
    """
    from strata.evaluation.bench import pipelines as bench

    if stages > layers:
        raise UsageError(f"{layers} layers are not enough for {stages} stages", hint="--layers, --stages")
    need("torch", extra="train")
    for module in ("starlette", "uvicorn", "httpx"):
        need(module, extra="serve")
    load = bench.PipelineLoad(stages, requests, tokens, layers, hidden)
    with ended_as_by_ctrl_c():
        data = bench.report(list(bench.measure(load, clients=clients)))
    emit(data, output, bench.show(data))


@click.command()
@click.argument("cases", type=click.Path(), metavar="CASES.json")
@click.option(
    "--goal", type=choice("both", "throughput", "latency"), default="both", help="What to optimise a plan for."
)
@click.option(
    "--strategy",
    type=choice("auto", "dp", "greedy"),
    default="auto",
    help="Search (auto), the reference dynamic programme, or sorted greedy.",
)
@click.option(
    "--time-limit",
    type=Finite(min=0.0),
    metavar="SECONDS",
    help="Stop each search after this time; the best plan so far is given.",
)
@output_option
def serving(cases: str, goal: str, strategy: Any, time_limit: float | None, output: str) -> int:
    """Lay out every pool of CASES.json (nodes, capacities, round trips) as pipelines.

    tokens_per_s and decode_ms are by the neutral model of the file: the slowest stage sets the pace, and decoding
    is the mean over tokens of all stages and hops, the closing one too. No plan exceeds bound (tokens/s); gap is
    what the plan may miss of it. A plan for both gives no fewer tokens/s than nodes filled in the order of their
    names, and in pools of up to 8 nodes 98 % of the most. A pool that cannot hold the model has no pipelines, and
    reasons. Ctrl-C prints the cases that are done.

    \b
    strata bench serving cases.json -o json
    """
    from strata.evaluation.bench import serving as bench
    from strata.evaluation.published_benchmarks.serving_cases import read_cases

    pools, answers, is_whole = read_cases(cases), list[dict[str, Any]](), True
    limit_s = math.inf if time_limit is None else time_limit
    with progress("planning", total=len(pools)) as advance:
        try:
            for answer in bench.measure(pools, goal=goal, strategy=strategy, time_limit_s=limit_s):
                answers.append(answer)
                advance(len(answers))
        except KeyboardInterrupt:
            is_whole = False
    emit({"cases": answers}, output, bench.show(answers, pools[: len(answers)]))
    if not is_whole:
        click.echo(f"interrupted: {len(answers)} of {len(pools)} cases", err=True)
        return INTERRUPTED
    return 0


@click.command()
@click.option("--clients", default=16, type=POSITIVE, help="Clients, each with a request at a time.")
@click.option("--requests", default=200, type=POSITIVE, help="Requests of all clients together.")
@click.option("--tokens", default=64, type=POSITIVE, help="Tokens of each answer, each an event of its own.")
@click.option("--gap", type=TIME_OR_0, default="0s", help="From one token to the next; 0 for as fast as it can.")
@click.option("--engine-port", default=0, type=PORT, help="Port of the engine, for peers to stand before it.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=URL",
    help="A gateway that stands before the engine's port already, to be measured as well; may be repeated.",
)
@output_option
def gateway(
    clients: int, requests: int, tokens: int, gap: float, engine_port: int, peers: tuple[str, ...], output: str
) -> int:
    """Ask a made-up engine directly and through gateways, and say what these add.

    The engine streams events as large as vLLM's. vllm-router and sglang-router are started before it, with their
    defaults, where these programs are found. cpu_ms_per_request is the CPU time of a gateway that was started
    here: what to compare on a machine with other work, where times are not to be had.

    \b
    strata bench gateway --tokens 128 --gap 10ms -o json
    strata bench gateway --engine-port 9000 --peer vllm-router=http://127.0.0.1:8001
    """
    from strata.evaluation.bench import gateway as bench

    for module in ("starlette", "uvicorn", "httpx"):
        need(module, extra="serve")
    named = dict(peer.partition("=")[::2] for peer in peers)
    if wrong := next((name for name, url in named.items() if not url.startswith("http://")), None):
        raise UsageError(
            f"--peer {wrong}: not NAME=http://HOST:PORT", hint="--peer vllm-router=http://127.0.0.1:8001"
        )
    if named and not engine_port:
        raise UsageError("--peer without --engine-port: peers need to know the engine", hint="--engine-port 9000")
    load = bench.GatewayLoad(clients, requests, tokens, gap)
    runs, is_whole = list[dict[str, Any]](), True
    with ended_as_by_ctrl_c():
        try:
            runs.extend(bench.measure(load, peers=named, engine_port=engine_port))
        except KeyboardInterrupt:
            click.echo("interrupted: what was measured until then", err=True)
            is_whole = False
    data = bench.report(runs)
    emit(data, output, bench.show(data))
    return 0 if is_whole else INTERRUPTED


@click.command()
@click.option("--decisions", default=5000, type=POSITIVE, help="Decisions timed in each row.")
@click.option(
    "--horizon", default=1800.0, type=Finite(min=1), metavar="SECONDS", help="Virtual time of the load test."
)
@click.option("--seed", default=0, help="Random seed of the layouts and requests.")
@output_option
def routing(decisions: int, horizon: float, seed: int, output: str) -> None:
    """Time the routers on mixed nodes in five regions, and load a pool worth 32 requests a second with 28.

    A decision is a route and a release while half of the slots are taken, requests of all sizes; CPU time of the
    deciding thread. The load test goes through the live scheduler in virtual time: four pipelines of 16 slots,
    2 s a request, Poisson arrivals.

    \b
    strata bench routing --decisions 100000
    """
    from strata.evaluation.bench import routing as bench

    data = bench.measure(decisions=decisions, horizon_s=horizon, seed=seed, progress=progress)
    emit(data, output, bench.show(data))
