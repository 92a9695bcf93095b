"""The slices of a node, as Prometheus reads them: from ledgers and what the kubelet wrote beside them."""

from __future__ import annotations

import os
import re
import struct

import pytest
import yaml
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cli.slices_export import export
from strata.net.metrics import render
from strata.slicing.node_slices import NodeSliceMetrics, find_slices
from tests import ROOT
from tests.slicing.ledger_builders import MIB, Ledger

LEDGER = "volumes/kubernetes.io~empty-dir/strata-ledger/quota.ledger"
TOLD = "volumes/kubernetes.io~downward-api/strata-limits"
MINE = {"namespace": "team", "pod": "train-0", "limits": "STRATA_MEMORY_LIMIT_0=1\nSTRATA_CONTAINER=main\n"}


def used(mib: int, *, refused: int = 0, context: int = 0) -> Ledger:
    made = Ledger()
    row, slot = made.row(1024 * MIB, cores=30), made.process()
    made.held(row, slot, mib * MIB)
    struct.pack_into("<I", made.data, 4096 + 28, 3 if context else 0)
    struct.pack_into("<QQ", made.data, 4096 + 40, context * MIB, refused)
    return made


@pytest.fixture
def pods(tmp_path):
    return tmp_path / "pods"


def tell(pods, uid, **told):
    for name, text in told.items():
        path = pods / uid / TOLD / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def lines(pods, **environment):
    metrics = NodeSliceMetrics(pods, environment=environment, user=4242)
    return [line for line in render(metrics.registry).splitlines() if not line.startswith("#")]


def test_a_pods_slice_has_its_names(pods):
    used(600, refused=7, context=400).write(pods / "uid-1" / LEDGER)
    tell(pods, "uid-1", **MINE)
    labels = '{container="main",device="0",namespace="team",pod="train-0",slice=""}'
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines(pods))}
    assert found == {
        f"strata_slice_used_bytes{labels}": 600 * MIB,
        f"strata_slice_limit_bytes{labels}": 1024 * MIB,
        f"strata_slice_cores_share{labels}": 0.3,
        f"strata_slice_processes{labels}": 1,
        f"strata_slice_context_bytes{labels}": 400 * MIB,
        f"strata_slice_refused_total{labels}": 7,
        "strata_slices_unreadable": 0,
    }


def test_slices_of_strata_run_have_theirs_alone(pods, tmp_path):
    used(100).write(tmp_path / "strata/slices/notebooks.ledger")
    found = list(find_slices(pods, {"XDG_RUNTIME_DIR": str(tmp_path)}, user=4242))
    assert [(one.name, one.pod) for one in found] == [("notebooks", "")]


@pytest.mark.parametrize("name", ['a"} 1\nfake{b="', "\x1b[2Jtrain", "Über", "x" * 300, ""])
def test_a_name_that_is_none_is_left_empty(pods, name):
    used(1).write(pods / "uid-1" / LEDGER)
    tell(pods, "uid-1", namespace=name, pod=name, limits=f"STRATA_CONTAINER={name}\n")
    (line,) = (line for line in lines(pods) if line.startswith("strata_slice_processes"))
    assert line == 'strata_slice_processes{container="",device="0",namespace="",pod="",slice=""} 1.0'


def test_what_a_pod_puts_in_its_ledgers_place_harms_no_other(pods):
    for uid, make in {
        "uid-1": lambda path: os.mkfifo(path),
        "uid-2": lambda path: path.symlink_to("/etc/passwd"),
        "uid-3": lambda path: path.write_bytes(b"nonsense"),
        "uid-4": lambda path: path.mkdir(),
    }.items():
        path = pods / uid / LEDGER
        path.parent.mkdir(parents=True)
        make(path)
    used(600).write(pods / "uid-5" / LEDGER)
    tell(pods, "uid-5", **MINE)
    found = lines(pods)
    assert "strata_slices_unreadable 4.0" in found
    assert sum(line.startswith("strata_slice_used_bytes") for line in found) == 1


def test_a_node_without_pods_has_a_page(pods):
    assert lines(pods) == ["strata_slices_unreadable 0.0"]


# The DaemonSet

EXPORTER = ROOT / "deploy/components/slices-exporter"


def test_alerts_ask_only_for_what_the_exporter_tells(pods):
    text = render(NodeSliceMetrics(pods, environment={}, user=4242).registry)
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    asked = set(re.findall(r"strata_slices?_[a-z_]+", (EXPORTER / "alerts.yaml").read_text()))
    assert asked
    assert asked <= told


def test_the_exporter_reads_the_kubelets_folder_and_has_no_other_right():
    (daemon,) = yaml.safe_load_all((EXPORTER / "exporter.yaml").read_text())
    spec = daemon["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostNetwork", "hostIPC", "serviceAccountName"} & set(spec)
    (container,) = spec["containers"]
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
    assert mount["readOnly"] is True
    assert mount["mountPropagation"] == "HostToContainer"
    usual = next(param.default for param in export.params if param.name == "pods")
    assert mount["mountPath"] == volume["hostPath"]["path"] == str(usual)
    told = CliRunner().invoke(cli, [*container["args"][:2], "--help"]).output
    assert {word for word in container["args"] if word.startswith("--")} <= set(told.split())
