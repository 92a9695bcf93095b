"""What is found becomes a fleet file that strata reads, whose every figure says who told it."""

import re
from dataclasses import replace

import pytest

from strata.cluster.api.crd.compute_node import compute_node
from strata.control.discovery.here import domains_here
from strata.control.discovery.kube import domains_of_kube
from strata.control.discovery.slurm import domains_of_slurm
from strata.control.drivers.slurm_tools import SlurmNode
from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet import catalogue
from strata.fleet.acu import acu
from strata.fleet.discovery.collect import Collected
from strata.fleet.discovery.fleet_file import fleet_text
from strata.fleet.fingerprint import Device, Fingerprint
from strata.fleet.health import DeviceReading
from strata.fleet.rdma import RdmaPort
from strata.fleet.schema import SlurmEntry, load_drivers, load_fleet
from strata.simulate.kernel_rates import kernel_rates

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
    return SlurmNode(name, "idle", partition, {"gpu": sum(counts.values()), **counts}, {}, 8)


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


@pytest.mark.parametrize(
    ("state", "used", "cpus", "free"),
    [
        ("mix", {"gpu": 5, "gpu:h100": 5}, 4, 3),
        ("mix", {"gpu": 5}, 4, 3),
        ("alloc", {"gpu": 0, "gpu:h100": 0}, 0, 0),
        ("drain", {}, 8, 0),
        ("idle*", {}, 8, 0),
    ],
)
def test_devices_of_slurm_are_free_where_a_job_could_get_them(tmp_path, state, used, cpus, free):
    node = SlurmNode("n0", state, "gpu", {"gpu": 8, "gpu:h100": 8}, used, cpus)
    _, fleet = written(tmp_path, *domains_of_slurm("site", [node], None))
    assert [(domain.num_devices, domain.num_free_devices) for domain in fleet.domains] == [(8, free)]


def kube_node(name, count, labels=None, resource="nvidia.com/gpu", **spec):
    counts = {"cpu": "64", resource: str(count)}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": counts, "allocatable": counts, "conditions": ready}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": status,
    }


def pod_on(node, count, name="p", phase="Running", resource="nvidia.com/gpu"):
    container = {"name": "c", "resources": {"limits": {resource: str(count)}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


def agent_of(node, *names, held=None, **more):
    made = Fingerprint(node, devices(*names), held=held or {}, **more)
    return compute_node(made, at="2026-11-24T12:00:00Z")


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


def test_without_an_agent_free_is_what_pods_do_not_request(tmp_path):
    nodes = [kube_node("a", 8), kube_node("b", 8), kube_node("c", 8, unschedulable=True)]
    pods = [pod_on("a", 3), pod_on("b", 8, "q", "Succeeded")]
    path, fleet = written(tmp_path, *domains_of_kube("prod", nodes, (), pods))
    assert [(domain.num_devices, domain.num_free_devices) for domain in fleet.domains] == [(24, 13)]
    assert "free_gpus: 13  # analytic: allocatable, less what pods request" in path.read_text()


def test_with_an_agent_free_is_what_the_kubelet_gave_to_nobody_and_is_well(tmp_path):
    held = {"team/p": {"nvidia.com/gpu": ("u1", "u2")}}
    agent = agent_of("a", *["A100-SXM4-80GB"] * 4, held=held)
    agent["status"]["devices"][3]["health"] = 0.0
    path, fleet = written(tmp_path, *domains_of_kube("prod", [kube_node("a", 4)], [agent], [pod_on("a", 2)]))
    assert [(domain.num_devices, domain.num_free_devices) for domain in fleet.domains] == [(4, 1)]
    assert "free_gpus: 1  # measured: well, and held by no pod" in path.read_text()


def test_who_may_not_see_pods_is_told_no_number_of_free_devices(tmp_path):
    path, fleet = written(tmp_path, *domains_of_kube("prod", [kube_node("a", 4)], (), None))
    assert fleet.domains[0].num_free_devices is None
    assert "free_gpus" not in path.read_text()


def test_what_an_agent_measured_goes_before_the_catalogue(tmp_path):
    """The slowest device counts, and what a plan takes for the card's speed with it."""
    card = catalogue.accelerator("A100-SXM4-80GB")
    own = [replace(card, fp16_flops_measured=rate) for rate in (200e12, 176.05e12)]
    some = tuple(replace(d, card=c) for d, c in zip(devices(card.name, card.name), own, strict=True))
    agents = [compute_node(Fingerprint("a", some), at="2026-11-24T12:00:00Z")]
    path, fleet = written(tmp_path, *domains_of_kube("prod", [kube_node("a", 2)], agents))
    found = fleet.domains[0].accelerator
    assert (found.name, found.fp16_flops, found.interconnect) == (card.name, card.fp16_flops, card.interconnect)
    assert acu(found).fp16 == pytest.approx(70, rel=1e-3)
    assert "# measured: our agent's benchmark, slowest of 2" in path.read_text()
    rates, usual = kernel_rates(found, "bf16"), kernel_rates(card, "bf16")
    assert rates.matmul_flops == pytest.approx(0.7 * usual.matmul_flops, rel=1e-3)
    assert rates.memory_bytes_per_s == usual.memory_bytes_per_s


def test_cards_of_one_name_that_differ_are_described_once_by_the_least_of_each_figure(tmp_path):
    found = [
        domains_of_kube(
            at, [kube_node("a", 2, {"nvidia.com/gpu.product": "GB9000", "nvidia.com/gpu.memory": mib})], ()
        )
        for at, mib in (("east", "196608"), ("west", "98304"))
    ]
    _, fleet = written(tmp_path, *found[0], *found[1])
    assert {domain.accelerator.memory_bytes for domain in fleet.domains} == {103.1e9}


A40G = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40960"}


@pytest.mark.parametrize(
    ("labels", "count", "num", "said"),
    [
        (A40G, 2, 2, ["says A100-SXM4-40GB, the agent A100-SXM4-80GB; the agent is believed", "says 40960 MiB"]),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}, 2, 2, []),
        ({}, 8, 2, ["counts 8 devices, the agent 2; the agent is believed: a resource may count shares"]),
        ({}, 1, 1, ["counts 1 devices, the agent 2; the resource is believed: pods get no more"]),
    ],
)
def test_labels_that_contradict_the_fingerprint_are_said_and_one_is_believed(tmp_path, labels, count, num, said):
    agents = [agent_of("a", *["A100-SXM4-80GB"] * 2)]
    found = domains_of_kube("prod", [kube_node("a", count, labels)], agents)
    path, fleet = written(tmp_path, *found)
    assert [(d.num_devices, d.accelerator.name) for d in fleet.domains] == [(num, "A100-SXM4-80GB")]
    assert len(found[0].doubts) == len(said)
    assert all(words in path.read_text() for words in said)


def test_a_fingerprint_that_cannot_be_read_is_said_and_labels_count(tmp_path):
    agent = agent_of("a", "A100-SXM4-80GB")
    agent["status"]["devices"][0]["memoryBytes"] = -1
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    path, fleet = written(tmp_path, *domains_of_kube("prod", [kube_node("a", 1, labels)], [agent]))
    assert fleet.domains[0].accelerator.vendor == "NVIDIA"
    assert "# a: what its agent published cannot be read, so labels are believed" in path.read_text()


def test_letters_that_a_tool_or_label_should_not_have_stay_on_their_line(tmp_path):
    odd = 'x\n  - name: evil\x1b[31m\u2028"#: {'
    path, fleet = written(tmp_path, *domains_of_kube("prod", [kube_node("a", 1)], [agent_of("a", odd)]))
    assert [domain.accelerator.name for domain in fleet.domains] == [odd]
    assert "\x1b" not in path.read_text()


@pytest.mark.parametrize(
    ("processes", "used_bytes", "told"),
    [
        (0, 1e9, "2  # measured: NVML: no process"),
        (1, 1e9, "0  # measured: NVML: no process"),
        (0, 40e9, "0  # measured: NVML: no process"),
        (None, 1e9, "2  # analytic: NVML: no load"),
        (0, None, None),
    ],
)
def test_devices_here_are_free_where_nothing_computes_on_them(tmp_path, processes, used_bytes, told):
    some = [replace(d, memory_used_bytes=used_bytes, utilisation=0.0) for d in devices(*["A100-SXM4-80GB"] * 2)]
    readings = {device.uuid: DeviceReading(0.0, processes=processes) for device in some}
    found = Collected(Fingerprint("box", tuple(some), tool="NVML"), readings)
    path, _ = written(tmp_path, *domains_here("box", found, lambda: RATES))
    assert (f"free_gpus: {told}" in path.read_text()) if told else "free_gpus" not in path.read_text()
