from __future__ import annotations

import json

import pytest

from strata.cluster.api.crd.runtime_profile import profile_object, profile_of
from strata.cluster.api.profile_schema import bundled_profiles
from strata.errors import BadFile

SPEC = {
    "vendor": "NVIDIA",
    "framework": "pytorch",
    "models": ["A100"],
    "image": "example.com/mine:1",
    "resource": "nvidia.com/gpu",
}


def obj(name="mine", **changes):
    return {"kind": "RuntimeProfile", "metadata": {"name": name, "uid": "1"}, "spec": {**SPEC, **changes}}


def mount(path, **more):
    return [{"name": "m", "hostPath": path, "containerPath": "/x", **more}]


@pytest.mark.parametrize("profile", bundled_profiles(), ids=lambda profile: profile.name)
def test_a_bundled_profile_comes_back_as_it_was(profile):
    assert profile_of(json.loads(json.dumps(profile_object(profile)))) == profile


def test_what_is_not_said_is_as_in_a_file():
    profile = profile_of(obj(mounts=mount("/opt/driver", isReadOnly=False)))
    assert (profile.name, profile.models, profile.code_mount) == ("mine", ("A100-SXM4-40GB",), "/workspace")
    assert not profile.mounts[0].is_read_only


@pytest.mark.parametrize(
    ("changes", "where", "text"),
    [
        ({"image": "x:1 --privileged"}, "spec.image", "tag or a digest"),
        ({"env": {"A\nB": "x"}}, r"spec.env.A\nB", "name of a variable"),
        ({"env": {"A": "x\nLD_PRELOAD=y"}}, "spec.env.A", "characters"),
        ({"env": {"A": "$(SECRET)"}}, "spec.env.A", "characters"),
        ({"noP2pEnv": {"A=B": "x"}}, "spec.noP2pEnv.A=B", "name of a variable"),
        ({"devicesEnv": "A B"}, "spec.devicesEnv", "name of a variable"),
        ({"mounts": mount("/opt/../etc/shadow")}, "spec.mounts[0].hostPath", "plain absolute path"),
        ({"mounts": mount("//etc")}, "spec.mounts[0].hostPath", "not for pods"),
        ({"mounts": mount("/var/run/docker.sock")}, "spec.mounts[0].hostPath", "not for pods"),
        ({"mounts": mount("/a", containerPath="x")}, "spec.mounts[0].containerPath", "plain absolute path"),
        ({"mounts": mount("/a", name="M_")}, "spec.mounts[0].name", "small letters"),
        ({"mounts": mount("/a", readOnly=True)}, "spec.mounts[0].readOnly", "did you mean 'isReadOnly'"),
        ({"codeMount": "../../etc"}, "spec.codeMount", "plain absolute path"),
        ({"entrypoints": {"vllm": ["sh\n-c"]}}, "spec.entrypoints.vllm[0]", "characters"),
        ({"resource": "gpu"}, "spec.resource", "resource name"),
        ({"models": ["A100", "Ascend910B3"]}, "spec.models[1]", "made by Huawei"),
        ({"models": ["A1000"]}, "spec.models[0]", "no accelerator"),
        ({"framework": "jax"}, "spec.framework", "'pytorch'"),
        ({"image": None}, "spec.image", "should be text"),
        ({"name": "../up"}, "metadata.name", "small letters"),
    ],
)
def test_a_bad_profile_is_refused_by_its_field(changes, where, text):
    with pytest.raises(BadFile, match="RuntimeProfile/") as caught:
        profile_of(obj(**changes))
    assert [fault.where for fault in caught.value.faults][:1] == [where]
    assert text in str(caught.value)


def test_a_profile_without_an_image_is_refused():
    bad = obj()
    del bad["spec"]["image"]
    with pytest.raises(BadFile, match=r"RuntimeProfile/mine: spec\.image: required key is missing"):
        profile_of(bad)
