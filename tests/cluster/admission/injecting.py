"""Pods as they come out of injection, and what is read off them."""

from __future__ import annotations

import pytest

from strata.cluster.admission.inject import inject
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile
from tests.cluster.admission.builders import (
    ASCEND,
    placement,
)  # fmt: skip

INDEX = "batch.kubernetes.io/job-completion-index"


def injected(thing, where=None, profile=ASCEND, minor=36):
    return inject(thing, where or placement(profile), profile, server_minor=minor)


def env(thing, number=0):
    return {
        one["name"]: one.get("value", one.get("valueFrom")) for one in thing["spec"]["containers"][number]["env"]
    }


def hosts(thing):
    required = thing["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [
        [
            one["values"]
            for one in (*term.get("matchExpressions", ()), *term.get("matchFields", ()))
            if one["key"] in ("kubernetes.io/hostname", "metadata.name")
        ]
        for term in required["nodeSelectorTerms"]
    ]


def faults(thing, where=None, profile=ASCEND):
    with pytest.raises(BadFile) as caught:
        injected(thing, where, profile)
    return {fault.where: fault.message for fault in caught.value.faults}


def waiting(of):
    return Placement(
        of.profile, (PodPlace("", (), of.pods[0].memory_bytes),), of.devices_per_pod, of.bandwidth, model=of.model,
        cores_share=of.cores_share,
    )  # fmt: skip
