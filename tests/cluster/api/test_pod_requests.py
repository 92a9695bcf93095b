"""What a pod requests, as kube-scheduler adds it up."""

from __future__ import annotations

import pytest

from strata.cluster.api.pod_requests import amount_of, requests_of, requests_of_gang


def container(cpu=None, memory=None, *, name="main", limits=None, **more):
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    return {"name": name, "resources": {"requests": requests, "limits": limits or {}}, **more}


def requested(**spec):
    return dict(requests_of({"spec": spec}).amounts)


@pytest.mark.parametrize(
    ("name", "text", "amount"),
    [
        ("cpu", "250m", 250),
        ("cpu", "1.5", 1500),
        ("cpu", "100u", 1),
        ("memory", "1Gi", 2**30),
        ("memory", "1.5k", 1500),
        ("memory", "1e3", 1000),
        ("memory", "2E", 2**60),
        ("memory", "100m", 1),
        ("nvidia.com/gpu", "8", 8),
        ("memory", "much", 0),
        ("memory", "-1", 0),
        ("memory", "9" * 25, 2**60),
    ],
)
def test_quantities_are_rounded_up_and_bounded(name, text, amount):
    assert amount_of(name, text) == amount


def test_containers_add_up_and_an_init_container_counts_where_it_is_larger():
    main, helper = container("1", "1Gi"), container("2", "1Gi", name="helper")
    assert requested(containers=[main, helper]) == {"cpu": 3000, "memory": 2**31, "pods": 1}
    init = container("5", "1Gi", name="init")
    assert requested(containers=[main, helper], initContainers=[init])["cpu"] == 5000


def test_sidecars_add_to_the_containers_and_to_the_init_containers_after_them():
    sidecar = container("1", name="proxy", restartPolicy="Always")
    early, late = container("3", name="early"), container("3", name="late")
    assert requested(containers=[container("1")], initContainers=[sidecar])["cpu"] == 2000
    assert requested(containers=[container("1")], initContainers=[early, sidecar])["cpu"] == 3000
    assert requested(containers=[container("1")], initContainers=[sidecar, late])["cpu"] == 4000


def test_limits_stand_for_requests_that_are_not_there_and_overhead_is_added():
    limited = container(limits={"cpu": "2", "memory": "1Gi"})
    assert requested(containers=[limited], overhead={"cpu": "250m"}) == {"cpu": 2250, "memory": 2**30, "pods": 1}


def test_what_the_pod_as_a_whole_requests_counts_instead():
    whole = {"requests": {"cpu": "8"}, "limits": {"memory": "4Gi"}}
    assert requested(containers=[container("1", "1Gi")], resources=whole) == {
        "cpu": 8000,
        "memory": 2**32,
        "pods": 1,
    }


def test_a_container_that_is_resized_counts_as_the_larger():
    status = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]}
    pod = {"spec": {"containers": [container("1")]}, "status": status}
    assert requests_of(pod).amounts["cpu"] == 4000


def test_ports_of_the_host_count_with_hostnetwork_all():
    ports = [{"containerPort": 8080}, {"containerPort": 53, "hostPort": 5353, "protocol": "UDP"}]
    assert requests_of({"spec": {"containers": [container(ports=ports)]}}).ports == {"UDP/5353"}
    spec = {"containers": [container(ports=ports)], "hostNetwork": True}
    assert requests_of({"spec": spec}).ports == {"TCP/8080", "UDP/5353"}


def test_a_gang_requests_the_most_of_any_template_without_accelerators():
    master = {"spec": {"containers": [container("8", "1Gi", limits={"nvidia.com/gpu": "1"})]}}
    worker = {"spec": {"containers": [container("1", "4Gi")]}}
    assert requests_of_gang([master, worker]).amounts == {"cpu": 8000, "memory": 2**32, "pods": 1}
