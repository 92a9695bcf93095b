from __future__ import annotations

from strata.cluster.api.placement_annotation import (
    LIMITS,
    PLACEMENT,
)  # fmt: skip
from strata.fleet.slices import QuotaLimits
from tests.cluster.admission.builders import (
    ASCEND,
    GIB,
    container,
    fraction,
    pod,
)  # fmt: skip
from tests.cluster.admission.injecting import env, faults, injected
from tests.slicing.contract import slices_from_environment


def test_a_fraction_gets_the_quota_library_and_no_device_of_the_plugin():
    after = injected(pod(container(gpu=1, env={"LD_PRELOAD": "/mine.so"})), fraction())
    main, got = after["spec"]["containers"][0], env(after)
    assert main["resources"] == {"limits": {}, "requests": {}}
    assert got["ASCEND_VISIBLE_DEVICES"] == "3"
    assert got["LD_PRELOAD"] == "/usr/local/strata/libstrata_quota.so:/mine.so"
    assert got["STRATA_LEDGER"] == "/var/run/strata/quota.ledger"
    assert slices_from_environment(got, devices=1) == {0: QuotaLimits(16 * GIB, 0.3)}
    assert {"name": "strata-quota", "mountPath": "/usr/local/strata", "readOnly": True} in main["volumeMounts"]
    volumes = {one["name"]: one for one in after["spec"]["volumes"]}
    assert volumes["strata-quota"]["hostPath"] == {"path": "/usr/local/strata", "type": "Directory"}
    assert "emptyDir" in volumes["strata-ledger"]


def test_who_logs_into_a_fraction_without_its_environment_finds_its_limits_in_a_file():
    after = injected(pod(), fraction())
    main = after["spec"]["containers"][0]
    mounts = {one["name"]: one for one in main["volumeMounts"]}
    assert mounts["strata-preload"] == {
        "name": "strata-preload", "mountPath": "/etc/ld.so.preload", "readOnly": True
    }  # fmt: skip
    assert mounts["strata-limits"] == {
        "name": "strata-limits", "mountPath": "/etc/strata/limits", "subPath": "limits", "readOnly": True
    }  # fmt: skip
    volumes = {one["name"]: one for one in after["spec"]["volumes"]}
    assert volumes["strata-preload"]["hostPath"] == {"path": "/usr/local/strata/ld.so.preload", "type": "File"}
    items = volumes["strata-limits"]["downwardAPI"]["items"]
    fields = {one["path"]: one["fieldRef"]["fieldPath"] for one in items}
    assert fields["limits"] == f"metadata.annotations['{LIMITS}']"
    lines = dict(line.split("=") for line in after["metadata"]["annotations"][LIMITS].splitlines())
    assert lines["STRATA_CONTAINER"] == main["name"]
    assert {name: env(after)[name] for name in lines if name != "STRATA_CONTAINER"} == {
        name: value for name, value in lines.items() if name != "STRATA_CONTAINER"
    }
    assert slices_from_environment(lines, devices=1) == {0: QuotaLimits(16 * GIB, 0.3)}
    assert LIMITS not in injected(pod())["metadata"]["annotations"]


def test_no_variable_volume_or_mount_of_the_user_undoes_a_limit():
    own = {"STRATA_MEMORY_LIMIT": "900Gi", "STRATA_MEMORY_LIMIT_0": "900Gi", "STRATA_QUOTA": "off"}
    mounts = [{"name": "fake", "mountPath": "/usr/local/strata/"}, {"name": "x", "mountPath": "/var/run/strata"}]
    volumes = [{"name": "fake", "emptyDir": {}}, {"name": "strata-quota", "emptyDir": {}}]
    after = injected(pod(container(env=own, volumeMounts=mounts), volumes=volumes), fraction())
    assert slices_from_environment(env(after), devices=1) == {0: QuotaLimits(16 * GIB, 0.3)}
    assert "STRATA_QUOTA" not in env(after)
    mounted = {(one["mountPath"], one["name"]) for one in after["spec"]["containers"][0]["volumeMounts"]}
    at_ours = {one for one in mounted if one[0].startswith(("/usr/local/strata", "/var/run/strata"))}
    assert at_ours == {("/usr/local/strata", "strata-quota"), ("/var/run/strata", "strata-ledger")}
    assert [one for one in after["spec"]["volumes"] if one["name"] == "strata-quota"] == [
        {"name": "strata-quota", "hostPath": {"path": "/usr/local/strata", "type": "Directory"}}
    ]


def test_a_preload_by_reference_cannot_be_joined():
    reference = {"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
    assert "cannot be joined" in faults(pod({"name": "main", "env": [reference]}), fraction())["LD_PRELOAD"]


def test_a_fraction_must_know_its_device():
    assert "completionMode" in faults(pod(), fraction(ASCEND, ("n1", 0), ("n1", 1)))[PLACEMENT]
    assert env(injected(pod(), fraction(ASCEND, ("n1", 5), ("n1", 5))))["ASCEND_VISIBLE_DEVICES"] == "5"
