"""Nodes without machines, as KWOK has them: objects made ready, and one thread that plays all their kubelets."""

from __future__ import annotations

import random
from contextlib import suppress

from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import NODE, POD, meta, name_of, namespace_of
from strata.cluster.api.watch import Listed, Watcher
from tests.support.real_processes import until

HOST = {"cpu": "64", "memory": "512Gi", "pods": "110"}


class StandInNodes:
    """Pods bound to a node of ours run at once, and are gone at once when they are deleted."""

    def __init__(self, plane, api) -> None:
        self._plane, self._api, self._ours = plane, api, set()
        self._watcher = Watcher(api, POD, self._heard, rng=random.Random(1)).start()

    def add(self, name, *, allocatable=None, labels=None, taints=()):
        """Make a Node object, ready, with `allocatable` beside cores and memory of a usual host."""
        self._ours.add(name)
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", **(labels or {})}
        node = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": list(taints)}}
        self._api.create(NODE, node)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        amounts = {**HOST, **{resource: str(amount) for resource, amount in (allocatable or {}).items()}}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
        return self._api.patch(NODE, name, body={"status": status}, subresource="status")

    def running(self, name, namespace):
        """Return a pod once it runs."""

        def found():
            pod = self._api.get(POD, name, namespace) or {}
            return pod if pod.get("status", {}).get("phase") == "Running" else None

        return until(found, lambda: f"pod {name} to run: {self._api.get(POD, name, namespace)}")

    def finish(self, name, namespace, phase="Succeeded"):
        """End a pod's containers."""
        self._api.patch(POD, name, namespace, body={"status": {"phase": phase}}, subresource="status")

    def _heard(self, news) -> None:
        for pod in news.objects if isinstance(news, Listed) else [news.obj]:
            if (pod.get("spec") or {}).get("nodeName") in self._ours:
                # A pod that is gone meanwhile, or changed: the next news tells.
                with suppress(ApiFailed):
                    self._act(pod)

    def _act(self, pod) -> None:
        name, namespace, phase = name_of(pod), namespace_of(pod), (pod.get("status") or {}).get("phase")
        if meta(pod).get("deletionTimestamp"):
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            own = {"uid": meta(pod)["uid"]}
            self._plane.ask("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": own})
        elif phase == "Pending":
            ready = {"type": "Ready", "status": "True"}
            body = {"status": {"phase": "Running", "conditions": [ready]}}
            self._api.patch(POD, name, namespace, body=body, subresource="status")

    def close(self) -> None:
        """Take the nodes away."""
        self._watcher.stop()
        assert self._watcher.failure is None
        for name in self._ours:
            self._api.delete(NODE, name)
