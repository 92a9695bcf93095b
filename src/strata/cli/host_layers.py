"""`strata host layers`: the four layers as a policy of scx_layered, or as steps any kernel takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from strata.cli.output import emit, output_option
from strata.cli.parameters import POSITIVE
from strata.errors import UsageError
from strata.tables import Line, Shown, rows

if TYPE_CHECKING:
    from strata.host.policy.generate import LayeredPolicy
    from strata.host.policy.plain import PlainPolicy


@click.command()
@click.option("--plain", "is_plain", is_flag=True, help="Without sched_ext: nice, cgroups, affinity, interrupts.")
@click.option("--pid", type=POSITIVE, help="Only this process and its descendants are the job.")
@output_option
def layers(is_plain: bool, pid: int | None, output: str) -> None:
    """Generate a policy for the threads running here: critical, data pipeline, supporting frameworks, the rest.

    With -o json it is the file that scx_layered reads. With --plain it is a list of steps that give the same
    layers without sched_ext; nothing is applied, and what this kernel does not offer is listed as left out.

    \b
    strata host layers -o json > policy.json
    strata host layers --plain
    """
    from strata.host.machine import cpus as cpus_of
    from strata.host.machine import kernel as kernel_of
    from strata.host.policy.codec import dump
    from strata.host.policy.generate import generate
    from strata.host.policy.plain import plain
    from strata.host.threads.classify import classify, only
    from strata.host.threads.observe import observe

    cpus, kernel, snapshot = cpus_of.probe(), kernel_of.probe(), observe()
    threads = classify(snapshot)
    if pid is not None:
        if pid not in snapshot.processes:
            raise UsageError(f"there is no process {pid}", hint="strata host threads")
        threads = only(threads, snapshot, pid)
    if is_plain:
        plain_policy = plain(cpus, kernel, threads)
        emit(_data(plain_policy), output, _show_steps(plain_policy))
        return
    policy = generate(cpus, kernel, threads)
    emit(dump(policy.layers), output, _show_policy(policy))


def _data(plain_policy: PlainPolicy) -> dict[str, Any]:
    return {
        "steps": [step.to_dict() for step in plain_policy.steps],
        "left_out": [{"what": item.what, "why": item.why} for item in plain_policy.left_out],
    }


def _show_policy(policy: LayeredPolicy) -> Shown:
    from strata.cli.host_lint import show_words
    from strata.host.policy.lint.explain import explain

    yield from show_words(explain(policy.layers))
    yield Line(f"run: scx_layered {' '.join([*policy.arguments, 'f:policy.json'])}", is_whole=True)
    if policy.missed:
        text = f"{len(policy.missed)} threads fall into another layer: a layer holds 32 blocks."
        yield Line(text, is_whole=True)


def _show_steps(plain_policy: PlainPolicy) -> Shown:
    if plain_policy.steps:
        body = ((step.layer, step.act, step.path, step.value, step.why) for step in plain_policy.steps)
        yield rows(("layer", "do", "where", "what", "why"), body)
    for item in plain_policy.left_out:
        yield Line(f"left out: {item.what}: {item.why}", is_whole=True)
