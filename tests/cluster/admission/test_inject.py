from __future__ import annotations

import copy
import subprocess
from dataclasses import replace

import pytest

from strata.cluster.admission.code import COPY
from strata.cluster.admission.inject import release
from strata.cluster.api.placement_annotation import (
    GATE,
    PLACEMENT,
    VISIBLE,
    WAITING,
    decode,
    encode,
    place_of,
)  # fmt: skip
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Cluster
from strata.errors import BadFile
from strata.fleet.fingerprint import Fingerprint
from tests.cluster.admission.builders import (
    ASCEND,
    NVIDIA,
    OWN,
    VLLM,
    container,
    fraction,
    placement,
    pod,
)  # fmt: skip
from tests.cluster.admission.injecting import INDEX, env, faults, hosts, injected, waiting
from tests.cluster.admission.mutability import forbidden
from tests.cluster.builders import A100, B3, choose, claim, node

# What a pod gets


def test_a_job_written_for_nvidia_gets_all_it_needs_on_ascend():
    after = injected(pod(container(gpu=1, command=["python", "train.py"])))
    main = after["spec"]["containers"][0]
    assert main["image"] == ASCEND.image
    assert main["command"] == ["python", "train.py"]
    assert main["resources"] == {
        "limits": {"huawei.com/Ascend910": "2"},
        "requests": {"huawei.com/Ascend910": "2"},
    }
    assert "ASCEND_VISIBLE_DEVICES" not in env(after), "a device plugin says which"
    assert env(after)["LD_LIBRARY_PATH"] == ASCEND.env["LD_LIBRARY_PATH"]
    assert {"name": "strata-host-dcmi", "mountPath": "/usr/local/dcmi", "readOnly": True} in main["volumeMounts"]
    assert {"name": "strata-host-dcmi", "hostPath": {"path": "/usr/local/dcmi"}} in after["spec"]["volumes"]
    assert after["spec"]["tolerations"] == [{"key": "huawei.com/Ascend910", "operator": "Exists"}]
    assert hosts(after) == [[["n1"]]]
    assert after["metadata"]["annotations"]["ai.compute/injected"] == "pytorch-ascend-a2"
    assert after["metadata"]["annotations"]["ai.compute/counted"] == "nvidia.com/gpu=1"


def test_the_pod_that_was_given_stays_as_it_was():
    given = pod(container(gpu=1, env={"LD_LIBRARY_PATH": "/mine"}), tolerations=[])
    before = copy.deepcopy(given)
    injected(given)
    assert given == before


def test_only_the_container_that_counts_devices_is_changed_and_sidecars_keep_all_but_vendors_resources():
    log = container("log", resources={"limits": {"cpu": "1", "nvidia.com/gpu": "0"}})
    after = injected(pod(log, container("train", gpu=2)))
    assert after["spec"]["containers"][0] == container("log", resources={"limits": {"cpu": "1"}})
    assert after["spec"]["containers"][1]["image"] == ASCEND.image
    assert after["metadata"]["annotations"]["ai.compute/container"] == "train"


def test_the_first_container_gets_the_devices_where_none_counts_any_unless_one_is_named():
    two = (container("a"), container("b"))
    assert injected(pod(*two))["spec"]["containers"][0]["image"] == ASCEND.image
    named = injected(pod(*two, annotations={"container": "b"}))
    assert [one["image"] for one in named["spec"]["containers"]] == ["me/train:1", ASCEND.image]


def test_parts_of_devices_in_other_vendors_words_go_and_nics_stay():
    limits = {"nvidia.com/gpu": "1", "nvidia.com/roce": "1", "memory": "1Gi"}
    after = injected(pod(container(resources={"limits": limits})))
    said = after["spec"]["containers"][0]["resources"]["limits"]
    assert said == {"nvidia.com/roce": "1", "memory": "1Gi", "huawei.com/Ascend910": "2"}


def test_peer_access_is_switched_off_where_devices_cannot_reach_each_other_and_there_are_several():
    assert env(injected(pod(), placement(can_p2p=False)))["HCCL_INTRA_ROCE_ENABLE"] == "1"
    assert "HCCL_INTRA_ROCE_ENABLE" not in env(injected(pod(), placement(ASCEND, ("n1", 0), can_p2p=False)))
    both = placement(NVIDIA, ("n1", 0), ("n1", 1), can_p2p=False)
    assert env(injected(pod(), both, NVIDIA))["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_P2P_DISABLE" not in env(injected(pod(), placement(NVIDIA), NVIDIA))


def test_a_users_variable_stays_but_for_the_devices_and_library_paths_are_joined():
    own = {"A": "mine", "LD_LIBRARY_PATH": "/y:/mine", "NVIDIA_VISIBLE_DEVICES": "all"}
    got = env(injected(pod(container(env=own)), placement(OWN), OWN))
    assert got == {"A": "mine", "LD_LIBRARY_PATH": "/x:/y:/mine"}


def test_a_library_path_that_refers_to_something_else_is_left_alone():
    reference = {"name": "LD_LIBRARY_PATH", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
    after = injected(pod(container(env={}) | {"env": [reference]}), placement(OWN), OWN)
    assert reference in after["spec"]["containers"][0]["env"]


def test_a_device_plugin_names_whole_devices_and_we_those_of_fractions():
    """A container's own variable counts instead of the plugin's: on a real kubelet it had devices of others."""
    hip = RuntimeProfile(
        "h", "Hygon", ("Hygon-K100",), "pytorch", "h:1", "hygon.com/dcu", devices_env="HIP_VISIBLE_DEVICES"
    )
    for profile in (hip, replace(hip, devices_env="NVIDIA_VISIBLE_DEVICES")):
        assert "env" not in injected(pod(), placement(profile, ("n1", 4)), profile)["spec"]["containers"][0]
    assert env(injected(pod(), fraction(hip), hip))["HIP_VISIBLE_DEVICES"] == "3"


def test_every_pod_of_a_gang_goes_to_its_own_place():
    gang = placement(ASCEND, ("n1", 0, 1), ("n2", 4, 5))
    second = injected(pod(annotations={INDEX: "1"}), gang)
    assert hosts(second) == [[["n2"]]]
    assert hosts(injected(pod(), gang)) == [[["n1", "n2"]]]


def test_a_pod_of_a_gang_carries_its_own_place_alone():
    """Else a gang of a thousand is a million places in the API server, and in everybody's watch of the pods."""
    where = placement(ASCEND, *((f"n{number}", 0, 1) for number in range(1000)))
    names = sorted(place.node for place in where.pods)
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": names}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    thing = pod(annotations={PLACEMENT: encode(where), INDEX: "7"}, affinity=affinity)
    after = injected(thing, where)
    own = decode(after["metadata"]["annotations"][PLACEMENT], where="pod")
    assert [place.node for place in own.pods] == ["n7"]
    assert hosts(after) == [[["n7"]]]
    assert place_of(after, own) == where.pods[7]
    assert injected(after, own) == after


def test_a_variable_has_the_numbers_of_the_vendors_own_tool():
    """On a node of two vendors each tool counts from 0."""
    both = node("n1", A100, 2).fingerprint.devices + node("n2", B3, 2).fingerprint.devices
    free = tuple(one.memory_bytes for one in both)
    state = replace(node("n1", A100, 4), fingerprint=Fingerprint("n1", both), free_bytes=free)
    asked = claim(None, accelerator=B3, memory_bytes=2.0**30, is_fractional=True)
    found = choose(Index.of(Cluster((state,))), asked, [NVIDIA, ASCEND]).placement
    assert found is not None
    assert set(found.pods[0].devices) <= {2, 3}
    assert env(injected(pod(), decode(encode(found), where="pod")))["ASCEND_VISIBLE_DEVICES"] in ("0", "1")


def test_affinity_is_added_to_every_alternative_the_user_gave():
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    ssd = {"key": "ssd", "operator": "Exists"}
    terms = [{"matchExpressions": [zone]}, {"matchExpressions": [ssd]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    after = injected(pod(affinity={"nodeAffinity": required, "podAffinity": {"x": 1}}))
    assert hosts(after) == [[["n1"]], [["n1"]]]
    assert after["spec"]["affinity"]["podAffinity"] == {"x": 1}


def test_selectors_and_tolerations_of_the_profile_are_added_once():
    theirs = [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "x"}]
    after = injected(pod(nodeSelector={"zone": "a"}, tolerations=theirs), placement(OWN), OWN)
    assert after["spec"]["nodeSelector"] == {"zone": "a", "pool": "train"}
    assert after["spec"]["tolerations"] == theirs


def test_an_engine_replaces_the_command_and_keeps_the_arguments():
    given = pod(container(command=["trtllm-serve"], args=["--model", "m"]), annotations={"engine": "vllm"})
    main = injected(given, placement(VLLM), VLLM)["spec"]["containers"][0]
    assert (main["command"], main["args"]) == (["vllm", "serve"], ["--model", "m"])
    assert "did you mean vllm?" in faults(pod(annotations={"engine": "vlm"}), profile=VLLM)["ai.compute/engine"]


def test_a_checkpoints_path_is_told_over_whatever_the_template_held():
    given = pod(container(env={"STRATA_CHECKPOINT": "/old"}), annotations={"checkpoint": "/ckpt/step-1000"})
    assert env(injected(given))["STRATA_CHECKPOINT"] == "/ckpt/step-1000"


# Code layers


def test_a_code_layer_is_an_image_volume_and_a_copy_below_1_34():
    given = pod(annotations={"code-image": "me/code:2"})
    image = injected(given)
    source = {"reference": "me/code:2", "pullPolicy": "IfNotPresent"}
    assert {"name": "strata-code", "image": source} in image["spec"]["volumes"]
    assert "initContainers" not in image["spec"]
    assert injected(given, minor=34)["spec"] == image["spec"]
    copied = injected(given, minor=33)
    assert {"name": "strata-code", "emptyDir": {}} in copied["spec"]["volumes"]
    assert [(one["name"], one["image"]) for one in copied["spec"]["initContainers"]] == [
        ("strata-code", "me/code:2")
    ]
    for after in (image, copied):
        mount = {"name": "strata-code", "mountPath": "/workspace", "readOnly": True}
        assert mount in after["spec"]["containers"][0]["volumeMounts"]


def test_the_copy_takes_what_is_no_systems_folder(tmp_path):
    source, into = tmp_path / "from", tmp_path / "into"
    for name in ("bin", "usr", "src", ".git", "a b"):
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text(name)
    (source / "train.py").write_text("x")
    into.mkdir()
    subprocess.run(["sh", "-c", COPY, "copy", source, into], check=True)
    assert sorted(path.name for path in into.iterdir()) == [".git", "a b", "src", "train.py"]
    assert (into / "a b" / "file").read_text() == "a b"


def test_a_taken_code_mount_is_a_fault():
    mine = container(volumeMounts=[{"name": "data", "mountPath": "/workspace/"}])
    assert "volume 'data'" in faults(pod(mine, annotations={"code-image": "me/code:2"}))["ai.compute/code-image"]
    assert injected(pod(mine))["spec"]["containers"][0]["volumeMounts"][0]["name"] == "data"


# Pods that wait


@pytest.mark.parametrize("where", [placement(), fraction()], ids=["whole", "fraction"])
def test_a_pod_that_waits_is_let_go_by_legal_changes_alone(where):
    nowhere = waiting(where)
    given = pod(annotations={WAITING: encode(nowhere)}, schedulingGates=[{"name": "other"}, {"name": GATE}])
    gated = injected(given, nowhere)
    reference = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE}']"}}
    assert env(gated).get("ASCEND_VISIBLE_DEVICES") == (reference if where.pods[0].memory_bytes else None)
    assert "affinity" not in gated["spec"]
    free = release(gated, where)
    assert forbidden(gated, free, phase="gated") == ()
    assert free["spec"]["schedulingGates"] == [{"name": "other"}]
    said = free["metadata"]["annotations"]
    assert said[VISIBLE] == ",".join(map(str, where.pods[0].devices))
    assert decode(said[PLACEMENT], where="x").pods == where.pods
    assert WAITING not in said
    assert hosts(free) == [[["n1"]]]


def test_a_pod_is_not_let_go_to_what_it_was_not_made_for():
    gated = injected(pod(annotations={WAITING: encode(waiting(placement()))}), waiting(placement()))
    with pytest.raises(BadFile, match="waits for 2x Ascend910B3"):
        release(gated, placement(NVIDIA))


# What cannot be injected

EVIL = [
    "x;rm -rf /", "$(id)", "`id`", "a\nLD_PRELOAD=x", "../p", "/a/../../etc", "/a b", "/a:b", "/$HOME", "/a'b",
    "a" * 5000, " ", "-v:1", "é:1",
]  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("key", ["code-image", "engine", "checkpoint", "container"])
def test_annotations_bring_nothing_into_a_pod_that_is_no_plain_value(key, evil):
    (found,) = faults(pod(annotations={key: evil})).items()
    assert found[0] == f"ai.compute/{key}"
    assert found[1].isprintable()
    assert len(found[1]) < 300


def test_all_faults_are_told_at_once():
    empty = RuntimeProfile("e", "NVIDIA", (), "pytorch", "", "nvidia.com/gpu", node_selector={"pool": "a"})
    given = pod(annotations={"code-image": "x", "engine": "x", "checkpoint": "x"}, nodeSelector={"pool": "b"})
    assert faults(given, placement(empty), empty).keys() == {
        "ai.compute/injected", "ai.compute/code-image", "ai.compute/engine", "ai.compute/checkpoint",
        "spec.nodeSelector.pool",
    }  # fmt: skip


def test_devices_for_two_containers_or_before_they_start_are_refused():
    two = faults(pod(container("a", gpu=1), container("b", gpu=1)))
    assert "nvidia.com/gpu in b, beside nvidia.com/gpu in a" in two["spec.containers[1].resources"]
    first = pod(initContainers=[container("warm", gpu=1)])
    assert faults(first) == {"spec.initContainers[0].resources": "nvidia.com/gpu: init containers get no devices"}


@pytest.mark.parametrize(
    ("odd", "path"),
    [
        ({}, "spec.containers"),
        ({"spec": None}, "spec.containers"),
        ({"spec": {"containers": []}}, "spec.containers"),
        ({"spec": {"containers": [{}]}}, "spec.containers[0].name"),
        ({"spec": {"containers": ["x"]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"name": "a", "env": {"A": "b"}}]}}, "spec.containers[0].env"),
        ({"spec": {"containers": [{"name": "a", "env": [1]}]}}, "spec.containers[0].env[0]"),
        ({"spec": {"containers": [{"name": "a", "env": [{}]}]}}, "spec.containers[0].env[0].name"),
        ({"spec": {"containers": [{"name": "a", "resources": []}]}}, "spec.containers[0].resources"),
        ({"spec": {"containers": [{"name": "a"}], "affinity": "x"}}, "spec.affinity"),
        ({"metadata": [], "spec": {"containers": [{"name": "a"}]}}, "metadata"),
        ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations.a"),
    ],
)  # fmt: skip
def test_odd_pods_are_refused_with_their_place(odd, path):
    assert path in faults(odd)
