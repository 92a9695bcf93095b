"""What the API server says of what the webhook makes, and of what our table says it refuses."""

from __future__ import annotations

import copy

import pytest

from strata.cluster.admission.inject import inject, release
from strata.cluster.api.placement_annotation import GATE, WAITING, encode
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from tests.cluster.admission.builders import B3, container, fraction, job, placement, pod
from tests.cluster.admission.mutability import forbidden, forbidden_template
from tests.cluster.admission.mutability_rows import AFFINITIES, ROWS, base, changed

REFUSED = (400, 403, 422)


def in_namespace(thing, namespace, name="p"):
    after = copy.deepcopy(thing)
    after["metadata"] |= {"namespace": namespace, "name": name}
    return after


def made(plane, thing, *, query=""):
    """The object as the API server keeps it."""
    group, kind = thing["apiVersion"], thing["kind"].lower() + "s"
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    status, answer = plane.ask("POST", f"{root}/namespaces/{thing['metadata']['namespace']}/{kind}{query}", thing)
    assert status == 201, answer
    return answer


def is_accepted(plane, thing):
    """Whether a change is let through; it is only tried."""
    meta, group = thing["metadata"], thing["apiVersion"]
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    path = f"{root}/namespaces/{meta['namespace']}/{thing['kind'].lower()}s/{meta['name']}?dryRun=All"
    status, answer = plane.ask("PUT", path, thing)
    assert status == 200 or status in REFUSED, answer
    return status == 200


@pytest.fixture
def bound(plane, namespace):
    thing = made(plane, in_namespace(base(), namespace))
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n1"}}
    assert plane.ask("POST", f"/api/v1/namespaces/{namespace}/pods/p/binding", binding)[0] == 201
    return plane.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{thing['metadata']['name']}")[1]


def test_pods_behind_gates_change_as_the_table_says(plane, namespace):
    before = made(plane, in_namespace(base("a.io/a"), namespace))
    assert differences(plane, before, "gated", 0) == {}


def test_pods_without_a_node_change_as_the_table_says(plane, namespace):
    before = made(plane, in_namespace(base(), namespace))
    assert differences(plane, before, "pending", 1) == {}


def test_pods_on_a_node_change_as_the_table_says(plane, bound):
    assert differences(plane, bound, "bound", 2) == {}


def differences(plane, before, phase, column):
    """Rows where server, table and our check do not agree."""
    found = {}
    # The server gives every pod these, also when they were left out of an update.
    given = [one for one in before["spec"]["tolerations"] if one["key"].startswith("node.kubernetes.io/")]
    for row, (path, value, said, _) in ROWS.items():
        after = changed(before, *path, to=[*value, *given] if path[-1] == "tolerations" else value)
        answers = (is_accepted(plane, after), forbidden(before, after, phase=phase) == (), said[column] == "y")
        if len(set(answers)) > 1:
            found[row] = answers
    return found


def test_node_affinity_of_gated_pods_is_narrowed_as_the_table_says(plane, namespace):
    for number, (old, new, is_legal) in enumerate(AFFINITIES):
        before = made(plane, in_namespace(base("a.io/a", affinity=old), namespace, f"p{number}"))
        after = changed(before, "spec", "affinity", to=new)
        answers = (is_accepted(plane, after), forbidden(before, after, phase="gated") == ())
        assert answers == (is_legal, is_legal), (old, new)


def test_templates_of_suspended_jobs_change_as_the_table_says(plane, namespace):
    thing = job(suspend=True)
    thing["spec"]["template"] = {"metadata": {}, "spec": {**base()["spec"], "restartPolicy": "Never"}}
    before = made(plane, in_namespace(thing, namespace))
    found = {}
    for row, (path, value, _, is_legal) in ROWS.items():
        after = changed(before, "spec", "template", *path, to=value)
        said = forbidden_template(before["spec"]["template"], after["spec"]["template"], server_minor=36)
        answers = (is_accepted(plane, after), said == (), is_legal)
        if len(set(answers)) > 1:
            found[row] = answers
    assert found == {}


@pytest.mark.parametrize("profile", bundled_profiles(), ids=lambda profile: profile.name)
def test_what_the_webhook_makes_is_a_pod_the_api_server_takes(plane, namespace, profile):
    asked = {
        "code-image": "team/code:1",
        "checkpoint": "/ckpt/step-10",
        "engine": next(iter(profile.entrypoints), ""),
    }
    given = pod(container(gpu=1, env={"A": "b"}), annotations={k: v for k, v in asked.items() if v})
    for where in (placement(profile, can_p2p=False), fraction(profile)):
        for minor in (33, 36):
            made_pod = inject(in_namespace(given, namespace), where, profile, server_minor=minor)
            kept = made(plane, made_pod, query="?dryRun=All")
            assert inject(kept, where, profile, server_minor=minor) == kept


@pytest.mark.parametrize("where", [placement(), fraction()], ids=["whole", "fraction"])
def test_a_pod_that_waited_is_let_go(plane, namespace, where):
    profile = next(one for one in bundled_profiles() if one.name == where.profile)
    place = PodPlace("", (), where.pods[0].memory_bytes)
    nowhere = Placement(where.profile, (place,), where.devices_per_pod, 0, model=B3, cores_share=where.cores_share)
    given = pod(container(gpu=1), annotations={WAITING: encode(nowhere)}, schedulingGates=[{"name": GATE}])
    gated = made(plane, inject(in_namespace(given, namespace), nowhere, profile, server_minor=36))
    assert is_accepted(plane, release(gated, where))
