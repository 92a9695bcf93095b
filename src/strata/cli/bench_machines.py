"""`strata bench` of clusters, slices and hosts; the bodies are in `strata.evaluation.bench`."""

from __future__ import annotations

from pathlib import Path

import click

from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import NATURAL, POSITIVE, Whole
from strata.errors import INTERRUPTED, install


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
@click.option("--events", type=Whole(min=1000), default=1_000_000, help="Length of the synthetic trace.")
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
