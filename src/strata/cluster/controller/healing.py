"""Self-healing: which nodes are taken out and come back, and which gangs have to move. Pure.

The rule. A node is out as soon as one of its devices is broken (health below `isolation.BAD`) or slow against its
own model's cohort. The router leaves out single devices by their health; kube-scheduler and device plugins cannot,
so the whole node gets the taint `ai.compute/unhealthy=<fault>:NoSchedule`, which no profile of ours tolerates.
What runs there stays, unless it holds the device itself and the drain policy says so:

    never     nothing is moved
    faults    gangs that hold a broken device; a slow one only gets no new work
    all       gangs that hold a slow device too: it makes the whole gang slow

As a whole node goes, nodes are what the budget counts (`isolation.budget`), not devices. A node that should leave
where the budget has no room gets the soft form of the taint, `PreferNoSchedule`: no capacity is lost by it. It
returns by `isolation.step`: after it was well without a break for ten minutes, doubled at each relapse.

A node whose agent has not been heard of for `stale_s`, by the controller's clock, is neither faulty nor well: it
keeps its standing, and its time of being well starts anew. Whether the machine is alive is the kubelet's business.
It is named in `Healing.silent`, for the caller to give it no new gangs. What an agent says the time is plays no
part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from strata.cluster.api.actions import Action, Apply, Patch, Ref, event, pascal
from strata.cluster.api.kinds import COMPUTE_NODE, Object, annotations_of, conditions_of, meta, moment, version_of
from strata.cluster.cache.informer import STALE_S
from strata.cluster.controller.isolation_state import (
    HARD,
    SOFT,
    STANDING,
    UNHEALTHY,
    IsolationState,
    encode,
    node_ref,
    our_taints,
)
from strata.cluster.controller.sub_health import SubHealthReport
from strata.decision import Reason
from strata.fleet.fingerprint import Device, Fingerprint
from strata.fleet.health import Slow
from strata.fleet.isolation import BAD, BUDGET_SHARE, MemberState, Observation, step

Drain = Literal["never", "faults", "all"]

ISOLATED: Final = "Isolated"
"""Condition of a ComputeNode."""

_SLOW: Final = "slow-"
_BY_CLOCK: Final = "slow-clock"
_UNDECIDED: Final = 0.5
"""A health neither bad nor good: what left stays out."""


@dataclass(frozen=True, slots=True)
class HealingPolicy:
    """drain: what is moved. share: of the nodes, how many may be out at a time, but always one."""

    drain: Drain = "faults"
    share: float = BUDGET_SHARE
    stale_s: float = STALE_S


@dataclass(frozen=True, slots=True)
class HealingView:
    """What healing looks at, by node. received_s: when each fingerprint came, by the controller's clock.

    sub_health: from `Window.look`, a few times a minute. holds: returns places of devices, by gang and node; asked
    only where a device has taken its node out.
    """

    nodes: Mapping[str, Object]
    compute_nodes: Mapping[str, Object]
    fingerprints: Mapping[str, Fingerprint]
    received_s: Mapping[str, float]
    holds: Callable[[], Mapping[str, Mapping[str, frozenset[int]]]] = dict
    sub_health: SubHealthReport = field(default_factory=SubHealthReport)


@dataclass(frozen=True, slots=True)
class Healing:
    """marks: to be given to the next `heal`. moves: gangs to suspend and route anew; named until they are gone.

    waiting: nodes that should leave, worst first, for which the budget has no room. silent: nodes not heard of.
    """

    states: Mapping[str, IsolationState]
    actions: tuple[Action, ...] = ()
    moves: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def heal(
    view: HealingView, states: Mapping[str, IsolationState], now_s: float, *, policy: HealingPolicy | None = None
) -> Healing:
    """Return what is to be done now. marks: of the step before, or `standing.marks_of` at the start.

    Actions say how things should be, so what failed, or was undone by hand, is said again at the next step.
    """
    policy = policy or HealingPolicy()
    slow = {device.uuid: device for device in view.sub_health.slow}
    here = {name: state for name, state in states.items() if name in view.nodes}
    seen: dict[str, Observation] = {}
    silent = []
    for name, fingerprint in view.fingerprints.items():
        if name not in view.nodes or not fingerprint.devices:
            continue
        if now_s - view.received_s.get(name, 0.0) > policy.stale_s:
            silent.append(name)
            if name in here:  # nobody knows whether it was well meanwhile
                unknown = replace(here[name].standing, well_since_s=None)
                here[name] = replace(here[name], standing=unknown)
        else:
            causes = here[name].causes if name in here else {}
            seen[name] = _seen(fingerprint, slow, causes, view.sub_health.judged)
    standings = {name: state.standing for name, state in here.items()}
    verdict = step(seen, standings, now_s, share=policy.share)
    after: dict[str, IsolationState] = {}
    for name, standing in verdict.states.items():
        if standing.is_isolated:
            before = here[name].causes if name in here else {}
            bad = _bad(view.fingerprints[name], slow) if name in seen else {}
            after[name] = IsolationState(standing, _causes(before, bad))
        else:
            old = here.get(name)
            is_same = old is not None and old.standing is standing and not old.causes
            after[name] = old if old is not None and is_same else IsolationState(standing)
    actions: list[Action] = []
    waiting, unmarked = frozenset(verdict.waiting), IsolationState()
    for name, node in view.nodes.items():
        state, compute_node = after.get(name, unmarked), view.compute_nodes.get(name, {})
        if name not in waiting and not state.standing.times and not _is_touched(node, compute_node):
            continue
        wish = _wish(node, state, seen.get(name), is_waiting=name in waiting)
        if wish == SOFT:
            words = _words(_bad(view.fingerprints[name], slow)) if name in seen else ""
            reason = Reason("isolation-waits", name, {"what": words or "not yet well"})
        elif wish == HARD:
            data = {"what": _words(state.causes) or "tainted by hand", "times": state.standing.times}
            reason = Reason("node-isolated", name, data)
        else:
            reason = Reason("node-released", name, {})
        actions += _node_actions(node, state, wish, reason, now_s)
        if compute_node:
            actions += _condition(compute_node, state.standing, reason, now_s)
    # Taints before words: where many nodes break at once, no taint waits for what is said of the others.
    actions.sort(key=lambda action: not isinstance(action, Patch))
    return Healing(after, tuple(actions), _moves(view, after, policy.drain), verdict.waiting, tuple(silent))


def owned(nodes: Mapping[str, Object], compute_nodes: Mapping[str, Object]) -> Iterator[Patch]:
    """Yield what makes each ComputeNode go when its Node goes, also where that comes back under the same name."""
    for name, compute_node in compute_nodes.items():
        uid = str(meta(nodes[name]).get("uid") or "") if name in nodes else ""
        if uid and not meta(compute_node).get("ownerReferences"):
            owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
            yield Patch(Ref(COMPUTE_NODE, name), {"metadata": {"ownerReferences": [owner]}})


def _seen(
    fingerprint: Fingerprint, slow: Mapping[str, Slow], causes: Mapping[str, str], judged: frozenset[str]
) -> Observation:
    """Return a node as its worst devices are. One that left as slow returns on evidence, not for lack of it.

    But who left for its clock at work has none any more, and comes back as after a fault: later at each relapse.
    """
    score = min(device.health if device.health >= 0 else 0.0 for device in fingerprint.devices)  # NaN too
    uuids = [device.uuid for device in fingerprint.devices] if slow or causes else ()
    words = {uuid: causes.get(uuid, "") for uuid in uuids}
    if any(word.startswith(_SLOW) and word != _BY_CLOCK and uuid not in judged for uuid, word in words.items()):
        score = min(score, _UNDECIDED)
    lame = [slow[uuid] for uuid in uuids if uuid in slow]
    return Observation(score, min(lame, key=lambda device: device.share, default=None))


def _bad(fingerprint: Fingerprint, slow: Mapping[str, Slow]) -> dict[str, str]:
    """Return the devices that take a node out, worst first, and a word why."""
    broken = sorted(
        (device.health if device.health >= 0 else 0.0, place) for place, device in enumerate(fingerprint.devices)
    )
    devices = fingerprint.devices
    faults = {devices[place].uuid: _word(devices[place]) for score, place in broken if score < BAD}
    lame = sorted((slow[device.uuid].share, device.uuid) for device in devices if device.uuid in slow)
    return faults | {uuid: _SLOW + slow[uuid].what for _, uuid in lame if uuid not in faults}


def _word(device: Device) -> str:
    return device.faults[0] if device.faults else "unwell"


def _causes(before: Mapping[str, str], bad: Mapping[str, str]) -> dict[str, str]:
    """Return what took a node out, oldest first; only a fault takes the place of a slowness."""
    causes = dict(before)
    for uuid, word in bad.items():
        if uuid not in causes or (causes[uuid].startswith(_SLOW) and not word.startswith(_SLOW)):
            causes[uuid] = word
    return causes


def _is_touched(node: Object, compute_node: Object) -> bool:
    """Return whether anything of ours is on a node: nearly all of thousands have nothing."""
    return (
        any(True for _ in our_taints(node))
        or STANDING in annotations_of(node)
        or any(condition.get("type") == ISOLATED for condition in conditions_of(compute_node))
    )


def _wish(node: Object, state: IsolationState, seen: Observation | None, *, is_waiting: bool) -> str:
    """Return the effect our taint should have, empty for none."""
    if state.standing.is_isolated:
        return HARD
    is_soft = any(taint.get("effect") == SOFT for taint in our_taints(node))
    # Once there, the soft taint stays until the node is well, or a fault that comes and goes would flap it.
    return SOFT if is_waiting or (is_soft and (seen is None or not seen.is_good)) else ""


def _node_actions(
    node: Object, state: IsolationState, wish: str, reason: Reason, now_s: float
) -> Iterator[Action]:
    ours = list(our_taints(node))
    there = [str(taint.get("effect")) for taint in ours]
    text = encode(state, now_s) or None
    is_tainted_so = there == ([wish] if wish else [])
    if is_tainted_so and text == annotations_of(node).get(STANDING):
        return
    body: dict[str, Any] = {"metadata": {"annotations": {STANDING: text}}}
    if not is_tainted_so:
        others = [taint for taint in (node.get("spec") or {}).get("taints") or () if taint not in ours]
        value = next(iter(state.causes.values()), "unwell")
        new = [{"key": UNHEALTHY, "value": _value(value), "effect": wish}] if wish else []
        body["spec"] = {"taints": [*others, *new]}
    yield Patch(node_ref(node), body, resource_version=version_of(node))
    if not is_tainted_so:
        yield event(node_ref(node), reason, is_warning=bool(wish))


def _value(word: str) -> str:
    """Return a word as the value of a taint, which has the form of a label's."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", word)[:63].strip("._-") or "unwell"


def _condition(compute_node: Object, standing: MemberState, reason: Reason, now_s: float) -> Iterator[Action]:
    conditions = conditions_of(compute_node)
    old = next((condition for condition in conditions if condition.get("type") == ISOLATED), None)
    status, token = str(standing.is_isolated), pascal(reason.token)
    if (old is None and token == pascal("node-released")) or (
        old is not None and (old.get("status"), old.get("reason")) == (status, token)
    ):
        return
    is_same = old is not None and old.get("status") == status
    since = old["lastTransitionTime"] if old is not None and is_same else moment(now_s)
    condition = {"type": ISOLATED, "status": status, "reason": token, "message": str(reason)}
    body = {"status": {"conditions": [{**condition, "lastTransitionTime": since}]}}
    yield Apply(Ref(COMPUTE_NODE, str(meta(compute_node).get("name") or "")), body, "status")


def _moves(view: HealingView, states: Mapping[str, IsolationState], drain: Drain) -> tuple[str, ...]:
    """Return the gangs that hold a device which took its node out, as far as the policy moves them."""
    out: dict[str, set[int]] = {}
    for name, state in states.items():
        words = {uuid: word for uuid, word in state.causes.items() if drain == "all" or not word.startswith(_SLOW)}
        if words and drain != "never" and name in view.fingerprints:
            devices = view.fingerprints[name].devices
            out[name] = {place for place, device in enumerate(devices) if device.uuid in words}
    return tuple(
        sorted(
            gang
            for gang, devices_by_node in (view.holds() if out else {}).items()
            if any(not out.get(node, set()).isdisjoint(held) for node, held in devices_by_node.items())
        )
    )


def _words(causes: Mapping[str, str]) -> str:
    return ", ".join(f"{word} on {uuid}" for uuid, word in causes.items())[:512]
