"""`strata kube why`: where a job or a pod goes, or why it waits, with every node's reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from strata.cli.kube_source import look, source_options
from strata.cli.output import emit, output_option
from strata.names import first_of
from strata.tables import Line, Shown

if TYPE_CHECKING:
    from strata.cluster.controller.why_query import Answer

_MOST_NAMES: Final = 8


@click.command()
@click.argument("target", metavar="POD|KIND/NAME", required=False)
@click.option("-f", "--filename", "path", type=click.Path(), help="A job that is not submitted yet.")
@click.option("-n", "--namespace", default="default", help="Where it is.")
@source_options
@output_option
def why(
    target: str | None, path: str | None, namespace: str, snapshots: Sequence[str], kubeconfig: str | None,
    context: str | None, output: str,
) -> None:  # fmt: skip
    """Say why a pod, a job or a ComputeClaim goes where it goes, or why it waits: every node's reason.

    What the controller decided is read from the ComputeClaim; where nothing was decided yet it is decided now,
    on the cluster as it is, and changes nothing.

    \b
    strata kube why train-0
    strata kube why job/train -n team-a
    strata kube why -f job.yaml
    """
    from strata.cluster.cache.gather import from_manifest, with_new
    from strata.cluster.controller.why_query import answer, as_created, target_of

    if path is not None:
        new = as_created(from_manifest(path))
        target, own = target_of(new, path, target)
        cache, objects = look(snapshots, kubeconfig, context, after=lambda there: with_new(there, new, namespace))
        namespace = own or namespace
    elif target is None:
        raise click.UsageError("name a pod, KIND/NAME, or a file by -f")
    else:
        cache, objects = look(snapshots, kubeconfig, context)
    explanation = answer(cache, objects, target, namespace=namespace, source=", ".join(snapshots))
    emit(_data(explanation), output, _show(explanation))


def _data(explanation: Answer) -> dict[str, Any]:
    status = explanation.status
    condition = _routed(explanation)
    decision = status.get("decision") or {}
    placement = explanation.placement
    return {
        "object": explanation.subject,
        "is_managed": explanation.is_managed,
        "source": "recorded" if explanation.is_recorded else "now",
        "is_routed": condition.get("status") == "True" if condition else placement is not None,
        "bound_to": explanation.bound_to or None,
        "reason": condition.get("reason", ""),
        "since": condition.get("lastTransitionTime") or None,
        "profile": status.get("profile"),
        "model": status.get("model"),
        "devices": status.get("devices"),
        "pods": [{"node": pod.node, "devices": list(pod.devices)} for pod in placement.pods] if placement else [],
        "reasons": list(decision.get("reasons") or ()),
        "moves": [
            {
                "gang": move["gang"],
                "devices": move["devices"],
                "cost_device_s": move["costDeviceSeconds"],
                "nodes": move.get("nodes", []),
            }
            for move in decision.get("moves") or ()
        ],
        "nodes": list(status.get("nodes") or ()),
        "nodes_omitted": status.get("nodesOmitted", 0),
        "trust": decision.get("trust"),
    }


def _routed(explanation: Answer) -> dict[str, Any]:
    from strata.cluster.api.crd.compute_claim import ROUTED

    conditions = explanation.status.get("conditions") or ()
    return next((dict(condition) for condition in conditions if condition.get("type") == ROUTED), {})


def _show(explanation: Answer) -> Shown:
    from strata.cluster.api.placement_annotation import MANAGED
    from strata.cluster.controller.why_query import grouped

    data = _data(explanation)
    kind, _, name = explanation.subject.partition("/")
    if explanation.bound_to:
        verb, when = "is bound", f" to {explanation.bound_to}"
    elif explanation.is_recorded:
        verb = "goes" if data["is_routed"] else "waits"
        when = f", since {data['since']}" if data["since"] else ""
    else:
        verb, when = "would go" if data["is_routed"] else "would wait", ", decided now"
    yield Line(f"{kind} {name} {verb}{when}", style="bold", is_whole=True)
    if not explanation.is_managed:
        yield Line(f"It is not routed by strata: it has no label {MANAGED}.", indent="  ")
    if data["is_routed"]:
        yield Line(f"{data['devices']}x {data['model']}, profile {data['profile']}", indent="  ")
        for line in _places(data["pods"]):
            yield Line(line, indent="  ", hang="    ")
    for reason in data["reasons"]:
        message = reason["message"].removeprefix(f"{reason.get('subject', '')}: ")
        yield Line(f"{reason['token']}: {message}", indent="  ", hang="    ")
    if data["trust"]:
        yield Line(f"figures: {data['trust']}", indent="  ")
    for token, messages in grouped(data["nodes"]).items():
        count = sum(map(len, messages.values()))
        yield Line(f"{token}, {count} {'node' if count == 1 else 'nodes'}", style="bold")
        for message, nodes in messages.items():
            yield Line(message, indent="  ", hang="    ")
            yield Line(first_of(nodes, _MOST_NAMES), indent="    ")
    if omitted := data["nodes_omitted"]:
        yield f"{omitted} more nodes, of which the claim has no room to tell"


def _places(pods: Iterable[dict[str, Any]]) -> list[str]:
    """Return a line a node: `n0: 2 pods on devices 0-3, 4-7`."""
    nodes: dict[str, list[str]] = {}
    for pod in pods:
        nodes.setdefault(pod["node"], []).append(_ranges(pod["devices"]))
    return [
        f"{node}: {len(some)} {'pod' if len(some) == 1 else 'pods'} on devices {', '.join(some)}"
        for node, some in nodes.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """Return `0-3+6` for 0, 1, 2, 3 and 6."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
