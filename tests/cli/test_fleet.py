"""`strata fleet`: what it prints strata reads, and what it cannot ask it says."""

import pytest

from strata.cli.main import run
from strata.fleet.schema import load_fleet
from tests import ROOT


@pytest.mark.long("times a product of matrices")
def test_this_machine_is_a_fleet(tmp_path, capsys):
    assert run(["fleet", "discover", "--local", "--name", "mine"]) == 0
    (tmp_path / "fleet.yaml").write_text(capsys.readouterr().out)
    fleet = load_fleet(tmp_path / "fleet.yaml")
    assert fleet.name == "mine"
    assert all(domain.num_devices > 0 for domain in fleet.domains)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "nothing to ask"),
        (("--conf", "/no/slurm.conf"), "slurm"),
        (("--kube", "x", "--kubeconfig", "/no"), "kube"),
    ],
)
def test_what_cannot_be_asked_is_said(arguments, text, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["fleet", "discover", *arguments]) in (2, 5)
    error = capsys.readouterr().err
    assert text in error.casefold()
    assert "try:" in error


def test_two_contexts_of_one_cluster_do_not_count_its_devices_twice(monkeypatch, capsys):
    class Fake:
        def list(self, kind):
            node = {"metadata": {"name": "n1", "uid": "7"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}
            return ([node] if kind.kind == "Node" else []), ""

        def close(self):
            pass

    pytest.importorskip("lightkube")
    monkeypatch.setattr("strata.cluster.api.client.connect", lambda **_: Fake())
    assert run(["fleet", "discover", "--kube", "west"]) == 0
    assert run(["fleet", "discover", "--kube", "west", "--kube", "admin@west"]) == 2
    assert "--kube admin@west: the cluster of --kube west, too: n1 is in both" in " ".join(
        capsys.readouterr().err.split()
    )


def test_what_is_free_and_what_is_doubted_is_said_as_far_as_we_may_look(monkeypatch, capsys):
    pytest.importorskip("lightkube")
    from strata.cluster.api.errors import ApiFailed
    from strata.cluster.api.kinds import NODE, POD

    class Fake:
        def list(self, kind):
            if kind == POD:
                raise ApiFailed("GET /api/v1/pods: 403: nobody cannot list resource pods", status=403)
            labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
            node = {
                "metadata": {"name": "n1", "uid": "1", "labels": labels},
                "status": {"capacity": {"nvidia.com/gpu": "8"}},
            }
            agent = {"metadata": {"name": "n1"}, "status": {"devices": 3}}
            return ([node] if kind == NODE else [agent]), ""

        def serves(self, kind):
            return True

        def close(self):
            pass

    monkeypatch.setattr("strata.cluster.api.client.connect", lambda **_: Fake())
    assert run(["fleet", "discover", "--kube", "west"]) == 0
    out, error = capsys.readouterr()
    assert "free_gpus" not in out
    assert "warning: --kube west: what is free is not said: GET /api/v1/pods: 403" in error
    assert "warning: west: n1: what its agent published cannot be read, so labels are believed" in error


def test_an_uplink_narrower_than_the_links_over_it_is_shown(tmp_path, capsys):
    text = (ROOT / "examples/fleet.yaml").read_text()
    file = tmp_path / "fleet.yaml"
    file.write_text(text.replace("num_gpus: 16\n", "num_gpus: 16\n    uplink: 5Gbps\n"))
    assert run(["fleet", "show", str(file)]) == 0
    assert "all links of east together: 5Gbps (uplink)" in capsys.readouterr().out
