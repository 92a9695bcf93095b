"""What is found becomes a fleet file that strata reads, whose every figure says who told it."""

import re

import pytest

from strata.cluster.api.crd.compute_node import compute_node
from strata.control.discovery.fleet_file import fleet_text
from strata.control.discovery.here import domains_here
from strata.control.discovery.kube import domains_of_kube
from strata.control.discovery.slurm import domains_of_slurm
from strata.control.drivers.slurm_tools import SlurmNode
from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet import catalogue
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Device, Fingerprint
from strata.fleet.rdma import RdmaPort
from strata.fleet.schema import SlurmEntry, load_drivers, load_fleet

RATES = {"fp32_flops": 40e9, "copy_bytes_per_s": 8e9}


def written(tmp_path, *domains):
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet_text("found", domains, command="strata fleet discover", at="now"))
    figures = [line for line in path.read_text().splitlines() if re.match(r" {4}(?!trust|driver|#)\S+: ", line)]
    assert all(re.search(r"  # (measured|analytic|assumed): \S", line) for line in figures), figures
    return path, load_fleet(path)


def devices(*names, memory_bytes=85e9):
    cards = [next((c for c in catalogue.accelerators() if c.name == name), None) for name in names]
    return tuple(
        Device(i, f"u{i}", name, "NVIDIA", memory_bytes, card)
        for i, (name, card) in enumerate(zip(names, cards, strict=True))
    )


def test_a_machine_with_cards_is_a_domain_of_them_with_its_slowest_pair(tmp_path):
    print_ = Fingerprint(
        "box", devices(*["A100-SXM4-80GB"] * 4), {(0, 1): "nvlink", (2, 3): "nvlink"}, tool="NVML"
    )
    path, fleet = written(tmp_path, *domains_here("box", Collected(print_), lambda: RATES))
    (domain,) = fleet.domains
    assert (domain.name, domain.num_devices, domain.accelerator.name) == ("box", 4, "A100-SXM4-80GB")
    assert domain.intra_bandwidth_bytes_per_s == 8e9
    assert "assumed: NVML: nvlink, sys" in path.read_text()
    assert load_drivers(path)["box"].kind == "local"


def test_cards_of_two_kinds_are_two_domains_and_one_that_nobody_knows_stands_inline(tmp_path):
    print_ = Fingerprint("box", devices("A100-SXM4-80GB", "Odd Card: 9000 #1"), tool="NVML")
    _, fleet = written(tmp_path, *domains_here("box", Collected(print_), lambda: RATES))
    odd = fleet.domains[1].accelerator
    assert [domain.num_devices for domain in fleet.domains] == [1, 1]
    assert (odd.name, odd.vendor, odd.memory_bytes, odd.fp16_flops) == ("Odd Card: 9000 #1", "NVIDIA", 85e9, None)
    assert {link.trust for link in fleet.links.values()} == {Trust.ASSUMED}


def test_a_machine_without_cards_is_its_cores_at_what_was_measured(tmp_path):
    _, fleet = written(tmp_path, *domains_here("box", Collected(Fingerprint("box")), lambda: RATES))
    card = fleet.domains[0].accelerator
    assert (card.fp32_flops, card.memory_bandwidth_bytes_per_s, card.trust) == (40e9, 8e9, Trust.MEASURED)


def slurm_node(name, partition="gpu", **gres):
    counts = {key.replace("_", ":"): count for key, count in gres.items()}
    return SlurmNode(name, "idle", partition, {"gpu": sum(counts.values()), **counts}, {}, 0)


def test_a_slurm_cluster_has_a_domain_for_each_type_and_partition(tmp_path):
    nodes = [slurm_node(f"n{i}", gpu_h100=8) for i in range(3)] + [slurm_node("o0", "old", gpu_tpu9=4)]
    path, fleet = written(tmp_path, *domains_of_slurm("site", nodes, tmp_path / "slurm.conf"))
    assert [(d.name, d.num_devices, d.devices_per_node) for d in fleet.domains] == [
        ("site-gpu-h100", 24, 8), ("site-old-tpu9", 4, 4),
    ]  # fmt: skip
    assert fleet.domains[1].accelerator.trust is Trust.ASSUMED
    assert load_drivers(path)["site-gpu-h100"] == SlurmEntry(
        kind="slurm", conf=str(tmp_path / "slurm.conf"), partition="gpu", gres="gpu:h100"
    )


def test_gpus_without_a_type_are_unknown_cards(tmp_path):
    _, fleet = written(tmp_path, *domains_of_slurm("site", [slurm_node("n0", gpu=4)], None))
    assert (fleet.domains[0].accelerator.name, fleet.domains[0].num_devices) == ("gpu", 4)


def kube_node(name, count, labels=None, resource="nvidia.com/gpu"):
    status = {"capacity": {"cpu": "64", resource: str(count)}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "status": status,
    }


def test_a_kubernetes_cluster_is_read_from_capacity_and_labels(tmp_path):
    product = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "topology.kubernetes.io/region": "eu"}
    odd = {"nvidia.com/gpu.product": "GB9000", "nvidia.com/gpu.memory": "196608"}
    nodes = [kube_node("a", 8, product), kube_node("b", 8, product), kube_node("c", 4, odd), kube_node("d", 0)]
    path, fleet = written(tmp_path, *domains_of_kube("prod", nodes, ()))
    assert [(d.name, d.num_devices, d.accelerator.name, d.region) for d in fleet.domains] == [
        ("prod", 4, "GB9000", ""), ("prod-eu", 16, "A100-SXM4-80GB", "eu"),
    ]  # fmt: skip
    assert fleet.domains[0].accelerator.memory_bytes == pytest.approx(206.2e9, rel=1e-3)
    assert "resource: nvidia.com/gpu" in path.read_text()


def test_a_cluster_whose_agents_see_rdma_ports_sends_as_its_slowest_node(tmp_path):
    product = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    ports = [RdmaPort(f"mlx5_{i}", 1, "infiniband", is_active=True, rate_bytes_per_s=25e9) for i in range(8)]
    agents = [
        compute_node(
            Fingerprint(at, devices("A100-SXM4-80GB"), ports=tuple(ports[:count])), at="2026-11-24T12:00:00Z"
        )
        for at, count in (("a", 8), ("b", 4))
    ]
    nodes = [kube_node("a", 8, product), kube_node("b", 8, product)]
    path, fleet = written(tmp_path, *domains_of_kube("prod", nodes, agents))
    assert fleet.domains[0].network_bandwidth_bytes_per_s == 4 * 25e9
    assert "network_bandwidth: 800Gbps  # analytic: RDMA ports" in path.read_text()


def test_a_node_whose_agent_sees_no_port_leaves_the_network_unsaid(tmp_path):
    agents = [compute_node(Fingerprint("a", devices("A100-SXM4-80GB")), at="2026-11-24T12:00:00Z")]
    path, _ = written(tmp_path, *domains_of_kube("prod", [kube_node("a", 8, {})], agents))
    assert "network_bandwidth" not in path.read_text()


@pytest.mark.parametrize(
    ("resource", "labels", "card"),
    [
        ("google.com/tpu", {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}, "TPU-v6e"),
        ("amd.com/gpu", {"amd.com/gpu.product-name": "AMD_Instinct_MI355X_OAM"}, "MI355X"),
    ],
)
def test_cards_of_others_are_known_by_their_labels(tmp_path, resource, labels, card):
    nodes = [kube_node("a", 4, labels, resource)]
    _, fleet = written(tmp_path, *domains_of_kube("cloud", nodes, ()))
    assert [(d.num_devices, d.accelerator.name) for d in fleet.domains] == [(4, card)]


def test_domains_of_one_name_are_told_apart(tmp_path):
    nodes = [kube_node("a", 8, {"nvidia.com/gpu.product": "H100"})]
    _, fleet = written(tmp_path, *domains_of_kube("x", nodes, ()), *domains_of_kube("x", nodes, ()))
    assert [domain.name for domain in fleet.domains] == ["x", "x-2"]


def test_where_nothing_is_found_it_says_so():
    with pytest.raises(UsageError, match="no accelerators were found"):
        fleet_text("none", [], command="strata fleet discover", at="now")
