"""The commands of `strata bench`. What they measure and how they show it is in `strata.evaluation.bench`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import NATURAL, PORT, POSITIVE, Finite, OutputFile, choice
from strata.errors import INTERRUPTED, UsageError, install, need


@click.command()
@click.argument("cases", type=click.Path(), metavar="CASES.json")
@output_option
def training(cases: str, output: str) -> None:
    """Plan every point of CASES.json (measured layer profiles, quotas, prices).

    Plans are scored with the neutral formulas all planners are compared by; search_s counts reading the
    file, building all tables and the search. A point whose limits nothing meets has no plan, and a reason.

    \b
    strata bench training cases.json -o json
    """
    from strata.evaluation.bench import training as bench

    data, points = bench.measure(cases, progress=progress)
    emit(data, output, bench.show(data["points"], points))


@click.command()
@click.option("--clients", default=16, type=POSITIVE, help="Clients, each with a request at a time.")
@click.option("--requests", default=200, type=POSITIVE, help="Requests of all clients together.")
@click.option("--tokens", default=64, type=POSITIVE, help="Tokens of each answer, each an event of its own.")
@click.option("--gap", default="0s", metavar="TIME", help="From one token to the next; 0 for as fast as it can.")
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
    clients: int, requests: int, tokens: int, gap: str, engine_port: int, peers: tuple[str, ...], output: str
) -> int:
    """Ask a made-up engine directly and through gateways, and say what these add.

    The engine streams events as large as vLLM's. cpu_ms_per_request is the CPU time of strata's gateway: what to
    compare on a machine with other work, where times are not to be had.

    \b
    strata bench gateway --tokens 128 --gap 10ms -o json
    strata bench gateway --engine-port 9000 --peer vllm-router=http://127.0.0.1:8001
    """
    from strata.evaluation.bench import gateway as bench
    from strata.units import parse

    for module in ("starlette", "uvicorn", "httpx"):
        need(module, extra="serve")
    named = dict(peer.partition("=")[::2] for peer in peers)
    if wrong := next((name for name, url in named.items() if not url.startswith("http://")), None):
        raise UsageError(
            f"--peer {wrong}: not NAME=http://HOST:PORT", hint="--peer vllm-router=http://127.0.0.1:8001"
        )
    if named and not engine_port:
        raise UsageError("--peer without --engine-port: peers need to know the engine", hint="--engine-port 9000")
    load = bench.GatewayLoad(clients, requests, tokens, parse(gap, "time"))
    runs, is_whole = list[dict[str, Any]](), True
    try:
        runs.extend(bench.measure(load, peers=named, engine_port=engine_port))
    except KeyboardInterrupt:
        click.echo("interrupted: what was measured until then", err=True)
        is_whole = False
    data = bench.report(runs)
    emit(data, output, bench.show(data))
    return 0 if is_whole else INTERRUPTED


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


@click.command()
@click.option("--decisions", default=1000, type=POSITIVE, help="Decisions timed for each cluster size.")
@click.option("--seed", default=0, help="Random seed of the clusters and traces.")
@click.option("--kubeconfig", type=click.Path(), help="A cluster to place gangs in, beside kube-scheduler alone.")
@click.option("--nodes", default=100, type=POSITIVE, help="Made there, eight devices each, and taken away.")
@click.option("--pods", default=500, type=POSITIVE, help="Of gangs of 8 to 512, a device each.")
@output_option
def cluster(decisions: int, seed: int, kubeconfig: str | None, nodes: int, pods: int, output: str) -> None:
    """Time the router on nodes of eight devices, and compare its placements on traces.

    A decision filters and scores every node for one pod as a scheduler extender does, from JSON to JSON, on a
    made-up cluster half of whose nodes are begun; then its gang is placed whole and the index updated. The same
    questions go over HTTP on loopback as well, with names only and, the peers' way, with whole nodes. The traces
    are of gangs that come and go in virtual time. With --kubeconfig gangs also go through that API server.

    \b
    strata bench cluster -o json
    """
    from strata.evaluation.bench import cluster as bench

    if not bench.is_server_installed():
        click.echo(f"without HTTP, whose server is not installed: {install('cluster')}", err=True)
    real = bench.measure_on(kubeconfig, nodes=nodes, pods=pods, seed=seed) if kubeconfig else {}
    data = bench.measure(decisions=decisions, seed=seed, progress=progress) | real
    emit(data, output, bench.show(data))


@click.command()
@click.option("--rounds", default=10, type=POSITIVE, help="Timed loops per turn.")
@output_option
def slicing(rounds: int, output: str) -> None:
    """Time a driver's calls with the quota library and without, in turns, in one run.

    The driver is one that does nothing, compiled here, so that what the library adds is seen: nanoseconds an
    allocation and its free, nanoseconds a call it leaves alone, and milliseconds until 200 processes that were
    started together have all allocated. Then what share of its device's time a program gets that asks for all of
    it and may have some; the device is one that only keeps time.

    \b
    strata bench slicing
    """
    from strata.evaluation.bench import slicing as bench

    data = bench.measure(rounds=rounds, progress=progress)
    emit(data, output, bench.show(data))


@click.command()
@click.option("--events", type=click.IntRange(min=1000), default=1_000_000, help="Length of the synthetic trace.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read this trace instead of a synthetic one.",
)
@click.option("--seeds", type=NATURAL, default=2, help="Trials of each fault whose culprit is known.")
@click.option(
    "--rounds",
    type=NATURAL,
    default=5,
    help="How often each recorder and each policy is tried on this kernel (about a minute); 0: not at all.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Inject the faults on this kernel (root), not on the simulated one, and try what helps against it.",
)
@output_option
def host(events: int, trace: Path | None, seeds: int, rounds: int, live: bool, output: str) -> None:
    """Measure how fast traces are read and explained, and how often a report names the culprit that was there.

    Rates are of CPU time, one thread; the text comes from a file that was just written. Faults are CPU
    hogs, a storm of forks, yields or pipes, a hog on the trainer's CPU, interrupts, or none.

    On the kernel that runs here: what recording costs, and how long a trainer waits for a CPU beside four busy
    loops on two CPUs, under one policy after the other. What is set is undone. Ctrl-C keeps what is done.

    \b
    strata bench host --events 1000000
    """
    from strata.evaluation.bench import host as bench

    data, is_interrupted = bench.measure(
        trace, events=events, seeds=seeds, rounds=rounds, live=live, progress=progress
    )
    emit(data, output, bench.show(data))
    if is_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


@click.command()
@click.argument("cases", type=click.Path())
@output_option
def accuracy(cases: str, output: str) -> None:
    """Predict the measured runs of the case file CASES and show the errors.

    Rows with a note are doubtful ("?"): they count in the means, which are given without them too.
    Left-out errors come from constants fitted again without the run, or without its whole set.

    \b
    strata bench accuracy measured.csv -o json
    """
    from strata.evaluation.bench import accuracy as bench

    data = bench.measure(cases)
    emit(data, output, bench.show(data))


@click.command()
@click.argument("table", type=click.Path(), metavar="FILE.csv")
@click.option("--svg", type=OutputFile(), help="Write the errors as a picture.")
@output_option
def published(table: str, svg: Path | None, output: str) -> None:
    """Predict the step time of every run in FILE.csv with the layout it was published with.

    A row is a model, its cards and its layout (docs/accuracy.md lists the columns); an empty microbatch or number
    of virtual stages is chosen. Without the column step_s the predictions alone are given. bias is the mean error,
    its sign kept; fits counts all memory of a card. Rows that cannot be read are faults of the file (exit code 2);
    the others are predicted all the same.

    \b
    strata bench published runs.csv --svg accuracy.svg
    """
    from strata.evaluation.bench import published as bench
    from strata.evaluation.published_benchmarks.published_run import read_table

    runs, bad = read_table(table)
    data = bench.measure(runs, progress=progress)
    if svg is not None:
        bench.plot(runs, data, svg)
    emit(data, output, bench.show(runs, data))
    if bad is not None:
        raise bad


@click.command()
@click.option("--seed", default=0, help="Random seed of the fleets.")
@click.option("--job", default="llama-3.1-70b", help="A job file, or a bundled job's name.")
@click.option("--time-limit", default=30.0, type=Finite(min=0), help="Time limit of each plan, in seconds.")
@output_option
def planning(seed: int, job: str, time_limit: float, output: str) -> int:
    """Time the planner on bundled fleets and on random ones of 4 to 32 domains.

    search_s is CPU time of the whole call, from the fleet and the job to the ranked answer; gap is how much
    better, as a share, any plan could be than the one returned. shortlist_s is CPU time of the fast candidates
    that a learned policy picks from, shortlist_regret how much slower the fastest of them is than the answer.

    \b
    strata bench planning --job llama-3.1-8b
    """
    from strata.evaluation.bench import planning as bench

    data, is_interrupted = bench.measure(job, seed=seed, time_limit_s=time_limit, progress=progress)
    emit(data, output, bench.show(data))
    if is_interrupted:
        click.echo(f"interrupted: {len(data['rows'])} rows", err=True)
    return INTERRUPTED if is_interrupted else 0


@click.command()
@click.option("--plans", type=POSITIVE, default=20_000, help="Plans in a batch.")
@output_option
def simulate(plans: int, output: str) -> None:
    """Measure plans per second of process CPU time, on one thread, for NumPy and (if installed) torch.

    Then one LLM step (32 layers, 4 stages x 8 copies, 8 microbatches) by the events backend, its copies together
    or each with its own jitter, beside ASTRA-sim's CPU time.

    \b
    strata bench simulate --plans 1000
    """
    from strata.evaluation.bench import simulate as bench

    data = bench.measure(plans)
    emit(data, output, bench.show(data))


@click.command()
@click.argument("scenarios", type=click.Path(), metavar="SCENARIOS.json")
@click.option("--policy", type=click.Path(), help="An exported policy instead of the bundled one.")
@click.option("--seeds/--no-seeds", default=True, help="Also run the policies of the other training seeds.")
@output_option
def replan(scenarios: str, policy: str | None, seeds: bool, output: str) -> None:
    """Re-plan under Markov links: SCENARIOS.json holds reward tables, chains and the paths to run.

    One policy for all scenarios. It sees the rewards now, each plan's expected reward 1, 2, 4 and 8 steps
    ahead, the switch cost, the plan in use and its links; no value function. hysteresis (margin 0.5) and mpc
    (2 steps) are fixed rules; mpc_tuned and hysteresis_tuned take their best setting per scenario with hindsight;
    vi is exact, clairvoyant knows the future. Figures are rewards a step; a gap is what is missed of vi.

    \b
    strata bench replan scenarios.json --policy policy.npz
    """
    from strata.evaluation.bench import replan as bench
    from strata.training.hi_ppo.policy import load_policy, other_seeds

    chosen = load_policy(policy)
    for note in chosen.notes:
        click.echo(f"note: {note}", err=True)
    others = other_seeds() if seeds and policy is None else []
    data = bench.measure(scenarios, chosen, others=others, progress=progress)
    emit(data, output, bench.show(data))


_TABLES: Final = 16
"""Fewest environments: as many as the tables of a measurement."""


@click.command()
@click.option("--envs", type=click.IntRange(min=_TABLES), default=512, help="Environments played at once.")
@click.option("--updates", type=POSITIVE, default=6, help="Updates timed, after one to warm up.")
@click.option(
    "--device",
    type=choice("auto", "cpu", "cuda"),
    default="auto",
    help="Also measure on a CUDA device: if there is one (auto), or fail without one (cuda).",
)
@output_option
def learn(envs: int, updates: int, device: str, output: str) -> None:
    """Measure PPO steps a second: playing and learning, 2 epochs of 4 minibatches on 32 steps.

    The same random tables for all. Stable-Baselines3, if it is installed, runs our network (same sizes, epochs and
    minibatches), then its own perceptron with as many weights. `simulated fleets` are worlds of several jobs in
    place of tables. CPU rows are per second of CPU time on one thread; CUDA rows per second of wall time, our
    environments on the device and theirs on the CPU.

    \b
    strata bench learn --updates 10
    """
    from strata.cli.learn import device_of

    need("torch", extra="train")
    from strata.evaluation.bench import learn as bench

    devices = list(dict.fromkeys(["cpu", device_of(device)]))
    data = bench.measure(envs=envs, updates=updates, devices=devices, progress=progress)
    emit(data, output, bench.show(data))


@click.command()
@click.option("--seconds", default=60.0, type=Finite(min=0), help="How long to train the ratios.")
@click.option("--fleets", default=24, type=POSITIVE, help="Number of fleets to compare on.")
@click.option("--seed", default=0, help="Random seed of training; the fleets to compare on stay the same.")
@output_option
def heads(seconds: float, fleets: int, seed: int, output: str) -> None:
    """Compare two actions for the agent between domains: allocation ratios, and a choice of plans.

    Ratios come from a Dirichlet head trained here by PPO, and become the best pipeline or
    data-parallel plan that follows them. Compared on random fleets of 2 to 6 domains that training never saw,
    with the bundled jobs, for the shortest step, with the bundled policy on candidate plans and the exact search.
    A fleet counts where some domain alone can run the job. regret is T / T_exact - 1; R_eff is
    (T_base - T) / T_base against the best single domain; no plan counts as T = 2 T_base. The exact plan's ratios
    are given: what they lose is lost by expressing a plan as ratios. Needs torch.

    \b
    strata bench heads --seconds 10
    """
    from strata.evaluation.bench import heads as bench

    data = bench.measure(seconds=seconds, fleets=fleets, seed=seed, progress=progress)
    emit(data, output, bench.show(data))


@click.command()
@click.option("--envs", default=1024, type=POSITIVE, help="Environments at once.")
@click.option("--instances", default=16, type=POSITIVE, help="Number of fleets in the pool.")
@click.option("--steps", default=40, type=click.IntRange(min=2), help="Number of steps timed.")
@click.option("--seed", default=0, help="Random seed of the fleets and links.")
@output_option
def world(envs: int, instances: int, steps: int, seed: int, output: str) -> None:
    """Time the simulated world without a policy: links, loads, jobs, rewards; and what a policy looks at.

    Steps of one environment a CPU second, on one core. `raw state` adds bandwidth, latency, utilisation, memory
    and queues as arrays; `options` the value of every option now and 1, 2, 4 and 8 steps ahead instead.

    \b
    strata bench world --envs 64
    """
    from strata.evaluation.bench import world as bench

    data = bench.measure(envs=envs, instances=instances, steps=steps, seed=seed, progress=progress)
    emit(data, output, bench.show(data))


@click.command()
@click.argument("table", type=click.Path())
@output_option
def astra(table: str, output: str) -> None:
    """Answer every run of the CSV file TABLE as ASTRA-sim would, and count equal nanoseconds.

    Without the column reported_ns the answers alone are given. Runs that failed are not counted; the reason
    is. Nor are llm runs: they show ASTRA-sim's scale, their rows say little of them. Pipelines are shown beside
    our default model too.

    \b
    strata bench astra table.csv
    """
    from strata.evaluation.bench import astra as bench

    data = bench.measure(table)
    emit(data, output, bench.show(data))


@click.command()
@click.option("--quick", is_flag=True, help="Ten domains and 100 jobs alone, fewer measurements, a smaller week.")
@output_option
def control(quick: bool, output: str) -> None:
    """Time the scheduler's loop: decisions a second, from observation to decision, memory, starts, a week of jobs.

    Simulated domains, the exact rule, plans inside one domain. A step takes in what every domain and the links of
    one of them report, and decides anew on every running job. The week has no events but those of its jobs.

    \b
    strata bench control --quick
    """
    from strata.evaluation.bench import control as bench

    small: dict[str, Any] = (
        {"sizes": ((10, 100),), "observations": 20_000, "starts": 5, "week": (4, 10)} if quick else {}
    )
    data = bench.measure(**small, progress=progress)
    emit(data, output, bench.show(data))
