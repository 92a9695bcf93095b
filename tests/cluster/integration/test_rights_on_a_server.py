"""What who has few rights is told, on a real API server: which verb on what, and all of it at once."""

from __future__ import annotations

import pytest

from strata.cli.main import run
from strata.cluster.api.errors import ApiFailed
from strata.cluster.cache.gather import listed
from tests.cluster.integration.definitions import define
from tests.support.real_processes import until

OURS = ["computenodes", "runtimeprofiles", "computeclaims"]
LISTED = {
    "": ["nodes", "pods"],
    "batch": ["jobs"],
    "resource.k8s.io": ["resourceslices", "resourceclaims"],
    "ai.compute": OURS,
}


@pytest.fixture(scope="module")
def defined(api):
    define(api)


def grant(plane, name, rules):
    role = {"metadata": {"name": name}, "rules": rules}
    subject = {"kind": "User", "name": "nobody", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for path, body in (
        ("clusterroles", role),
        ("clusterrolebindings", {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference}),
    ):
        status, answer = plane.ask("POST", f"{rbac}/{path}", body)
        assert status == 201, answer


def test_what_may_not_be_listed_is_named_and_what_may_be_is_shown(defined, plane, capsys):
    asked = ["--kubeconfig", str(plane.kubeconfig("nobody"))]
    for command in (["kube", "why", "job/x", *asked], ["kube", "acu", *asked]):
        assert run(command) == 5
        error = " ".join(capsys.readouterr().err.split())
        assert 'User "nobody" cannot list resource "nodes"' in error
        assert (
            "nor list computenodes.ai.compute, runtimeprofiles.ai.compute, computeclaims.ai.compute, pods" in error
        )
        assert "jobsets" not in error, "a kind that is not installed is nobody's to list"
        assert "try: kubectl auth can-i --list" in error

    assert run(["fleet", "discover", "--kube", "test", *asked]) == 5
    assert 'cannot list resource "nodes"' in capsys.readouterr().err
    status = {"capacity": {"nvidia.com/gpu": "8"}}
    plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}, "status": status})
    grant(plane, "some", [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}])
    until(lambda: _may(plane), lambda: "the right to list nodes")
    assert run(["fleet", "discover", "--kube", "test", *asked]) == 0
    out, error = capsys.readouterr()
    assert "num_gpus: 8" in out
    assert "free_gpus" not in out
    assert "labels are believed: GET /apis/ai.compute/v1alpha1/computenodes: 403" in error
    assert "what is free is not said: GET /api/v1/pods: 403" in error

    rules = [{"apiGroups": [group], "resources": kinds, "verbs": ["list"]} for group, kinds in LISTED.items()]
    grant(plane, "all", rules)
    until(lambda: run(["kube", "acu", *asked]) == 0, lambda: capsys.readouterr().err)


def _may(plane):
    from contextlib import closing

    from strata.cluster.api.client import connect
    from strata.cluster.api.kinds import NODE

    with closing(connect(kubeconfig=str(plane.kubeconfig("nobody")))) as client:
        try:
            return listed(client, NODE) is not None
        except ApiFailed:
            return False
