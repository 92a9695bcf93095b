"""What the tests on a real control plane share; each of them needs it, and the libraries we talk to it with."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from strata.cluster.api.client import connect
from tests.cluster.integration.control_plane import ControlPlane, clean_namespace
from tests.cluster.integration.stand_in_nodes import StandInNodes

COUNT = itertools.count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.real("lightkube", "cryptography", "control-plane"))
            if config.pluginmanager.hasplugin("xdist"):  # all in one worker: one control plane is enough
                item.add_marker(pytest.mark.xdist_group("control-plane"))


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """etcd and kube-apiserver, running; see ControlPlane for the rest.

    Each file's own, 3 s: what one installs for the whole cluster (definitions, webhooks, rights) is not in the way
    of the next.
    """
    with ControlPlane(tmp_path_factory.mktemp("plane")) as made:
        yield made


@pytest.fixture(scope="module")
def api(plane):
    """A client that may do all."""
    made = connect(kubeconfig=str(plane.kubeconfig()))
    yield made
    made.close()


@pytest.fixture
def namespace(plane):
    """A namespace of the test's own; its jobs and pods do not outlive it."""
    name = f"test-{next(COUNT)}"
    plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    clean_namespace(plane, name)


@pytest.fixture
def nodes(plane, api):
    """Nodes without machines: `nodes.add("a", allocatable={"nvidia.com/gpu": 8})`."""
    made = StandInNodes(plane, api)
    yield made
    made.close()
