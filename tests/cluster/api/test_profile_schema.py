from __future__ import annotations

import pytest

from strata.cluster.api.profile_schema import bundled_profiles, load_profile
from strata.errors import BadFile

PROFILE = """\
apiVersion: strata/v1alpha1
kind: RuntimeProfile
name: mine
vendor: NVIDIA
framework: pytorch
models: [A100]
image: example.com/mine:1
resource: nvidia.com/gpu
"""


def load(tmp_path, text):
    file = tmp_path / "profile.yaml"
    file.write_text(text)
    return load_profile(file)


def test_the_bundled_profiles_cover_the_vendors_and_say_that_nobody_tried_them():
    pairs = {(profile.vendor, profile.framework) for profile in bundled_profiles()}
    vendors = {"NVIDIA", "Huawei", "Cambricon", "Hygon", "Moore Threads"}
    assert {vendor for vendor, framework in pairs if framework == "pytorch"} == vendors
    assert {"NVIDIA", "Huawei"} <= {vendor for vendor, framework in pairs if framework == "mindspore"}
    assert {"NVIDIA", "Huawei", "Cambricon", "Hygon"} <= {v for v, framework in pairs if framework == "paddle"}
    assert not any(profile.was_tried for profile in bundled_profiles())
    assert all(profile.source for profile in bundled_profiles())


def test_a_card_gets_pytorch_where_the_job_names_no_framework():
    assert bundled_profiles()[0].framework == "pytorch"


def test_peer_access_is_switched_off_in_each_vendors_words():
    of = {profile.name: profile for profile in bundled_profiles()}
    assert of["pytorch-nvidia"].no_p2p_env == {"NCCL_P2P_DISABLE": "1"}
    assert of["pytorch-ascend-a2"].no_p2p_env["HCCL_INTRA_ROCE_ENABLE"] == "1"
    assert of["pytorch-ascend-a2"].devices_env == "ASCEND_VISIBLE_DEVICES"


def test_a_profile_file_is_read(tmp_path):
    profile = load(tmp_path, PROFILE)
    assert (profile.models, profile.image, profile.mounts) == (("A100-SXM4-40GB",), "example.com/mine:1", ())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("image: example.com/mine:1\n", ""), "image: required key is missing"),
        (("example.com/mine:1", "example.com/mine"), "tag or a digest"),
        (("example.com/mine:1", '"x:1 --privileged"'), "tag or a digest"),
        (("models: [A100]", "models: [A100, Ascend910B3]"), "made by Huawei"),
        (("models: [A100]", "models: [A1000]"), "no accelerator"),
        (("models: [A100]", "models: []"), "models"),
        (("nvidia.com/gpu\n", "gpu\n"), "resource name"),
        (("nvidia.com/gpu\n", 'nvidia.com/gpu\nenv: {"A=B": x}\n'), "name of a variable"),
        (("nvidia.com/gpu\n", 'nvidia.com/gpu\nenv: {A: "x\\nLD_PRELOAD=y"}\n'), "characters"),
        (("nvidia.com/gpu\n", "nvidia.com/gpu\ncode_mount: ../etc\n"), "plain absolute path"),
        (
            ("nvidia.com/gpu\n", "nvidia.com/gpu\nmounts: [{name: a, host_path: /etc/, container_path: /x}]\n"),
            "not for pods",
        ),
        (
            (
                "nvidia.com/gpu\n",
                "nvidia.com/gpu\nmounts: [{name: a, host_path: /a/../etc, container_path: /x}]\n",
            ),
            "plain absolute path",
        ),
        *(
            (
                (
                    "nvidia.com/gpu\n",
                    f"nvidia.com/gpu\nmounts: [{{name: a, host_path: {path}, container_path: /x}}]\n",
                ),
                "not for pods",
            )
            for path in (
                "//etc",
                "/run/containerd/containerd.sock",
                "/root/.ssh",
                "/var/lib",
                "/var/lib/kubelet/pods",
            )
        ),
        (("vendor: NVIDIA", "vendr: NVIDIA"), "did you mean 'vendor'"),
    ],
)
def test_bad_profiles_are_refused_with_their_place(tmp_path, change, text):
    with pytest.raises(BadFile, match=r"profile\.yaml") as caught:
        load(tmp_path, PROFILE.replace(*change))
    assert text in str(caught.value)
