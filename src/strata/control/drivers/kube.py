"""Domains that are Kubernetes clusters, a context each: a part is an indexed Job, and a ConfigMap, its record.

Nothing is kept outside the cluster. Steps and checkpoints are read from the log of rank 0's pod, where the ranks
write their reports. An object of ours is known by a label, a part's names follow from its attempt: what is made
twice is refused by the API server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar, Final

from strata.cluster.api import kinds
from strata.cluster.api.client import Api, connect
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import JOB, NODE, POD, Object, ObjectKind, annotations_of, is_true, name_of
from strata.control.drivers import kube_objects as objects
from strata.control.drivers.kube_objects import ATTEMPT, CONFIG_MAP, REFUSED, SERVICE, STARTED, STOP
from strata.control.drivers.kube_part import kube_part
from strata.control.drivers.kube_seen import age_s, count_of, devices_held, index_of, label_of, part_seen, phase_of
from strata.control.drivers.launch import Workplace
from strata.control.drivers.part import KEPT_S
from strata.control.state import DomainSeen, PartPhase, Start
from strata.errors import UsageError
from strata.fleet.fleet import Domain
from strata.fleet.schema import KubeEntry
from strata.fleet.vendor_resources import usual_resource

_FOLLOW_S: Final = 2.0


@dataclass(frozen=True)
class KubeDriver:
    """A domain of a cluster. entry: what the fleet file says."""

    domain: str
    workplace: Workplace
    entry: KubeEntry
    every_s: ClassVar[float] = 5.0
    lost_after_s: ClassVar[float] = 12 * every_s

    @cached_property
    def api(self) -> Api:
        """The API server; nothing is asked yet."""
        return connect(kubeconfig=self.entry.kubeconfig, context=self.entry.context, timeout_s=8.0)

    @property
    def namespace(self) -> str:
        """Where the objects lie."""
        return self.entry.namespace or self.api.namespace

    def check(self) -> None:
        """Raise MissingPart or UsageError where no job can be made; a server that is down may be back."""
        try:
            self.api.list(JOB, namespace=self.namespace, labels=self._selector)
        except ApiFailed as failed:
            if failed.status in (401, 403):
                raise UsageError(f"{self.domain}: {failed}", hint="kubectl auth can-i create jobs") from failed

    def observe(self, now_s: float) -> DomainSeen:
        """Return every part there is a record of."""
        records, _ = self.api.list(CONFIG_MAP, namespace=self.namespace, labels=self._selector)
        jobs, _ = self.api.list(JOB, namespace=self.namespace, labels=self._selector)
        pods, _ = self.api.list(POD, namespace=self.namespace, labels=self._selector)
        by_name = {name_of(job): job for job in jobs}
        parts, where = [], self._where()
        for record in records:
            own = [pod for pod in pods if label_of(pod, "job-name") == name_of(record)]
            seen = part_seen(record, by_name.get(name_of(record)), own, self._log)
            if seen is not None and seen.phase is PartPhase.RUNNING:
                self._mark_begun(seen.attempt)
            if seen is not None and seen.phase.is_over and age_s(record) > KEPT_S:
                self.api.delete(CONFIG_MAP, name_of(record), self.namespace)  # its Job and Service go with it
            elif seen is not None:
                if seen.message in ("", "suspended") and not seen.phase.is_over:
                    seen = replace(seen, message=where.get(name_of(record), seen.message))
                parts.append(seen)
        waiting = sum(part.phase is PartPhase.WAITING for part in parts)
        return DomainSeen(self.domain, now_s, self._devices(), tuple(parts), queue=waiting)

    def start(self, start: Start) -> None:
        """Make the part's objects. Does nothing where its Job was made, or it was stopped."""
        name = self._name(start.attempt.id)
        record = self.api.get(CONFIG_MAP, name, self.namespace)
        if record is not None and annotations_of(record).keys() & {STARTED, STOP, REFUSED}:
            return
        part = kube_part(
            start, self.workplace, self.entry, name=name, labels=self._labels, namespace=self.namespace
        )
        record = record or self._made(CONFIG_MAP, part.record)
        if part.fault:
            return
        self._made(SERVICE, objects.owned(part.service, record))
        self._made(JOB, objects.owned(part.job, record))
        self._annotate(name, {STARTED: "true"})

    def stop(self, attempt: str, *, grace_s: float) -> None:
        """Ask a part to end through its record; what is still there a minute after the grace is deleted."""
        name = self._name(attempt)
        record = self.api.get(CONFIG_MAP, name, self.namespace)
        if record is None:  # kept as ended, so that a start that comes late does not run it
            about = {"name": name, "labels": self._labels, "annotations": {ATTEMPT: attempt, STOP: "0"}}
            self._made(CONFIG_MAP, {"metadata": about})
            return
        until = annotations_of(record).get(STOP)
        if until is None:
            until = str(time.time() + grace_s)
            data = {objects.STOP_KEY: str(round(grace_s))}
            body = {"metadata": {"annotations": {STOP: until}}, "data": data}
            self.api.patch(CONFIG_MAP, name, self.namespace, body=body)
        pods, _ = self.api.list(POD, namespace=self.namespace, labels=f"job-name={name}")
        if not any(phase_of(pod) != "Pending" for pod in pods):
            if self.api.get(JOB, name, self.namespace) is not None:
                self.api.patch(JOB, name, self.namespace, body={"spec": {"suspend": True}})  # takes its pods away
            return
        for pod in pods:
            if phase_of(pod) == "Running" and time.time() > float(until) + objects.MARGIN_S:
                self.api.delete(POD, name_of(pod), self.namespace)
            elif phase_of(pod) == "Running" and annotations_of(pod).get(STOP) != until:
                # The kubelet then looks at the record at once, not within its minute or two.
                self.api.patch(
                    POD, name_of(pod), self.namespace, body={"metadata": {"annotations": {STOP: until}}}
                )

    def logs(self, attempt: str, *, follow: bool = False) -> Iterator[str | None]:
        """Yield what the ranks of a part wrote, pod by pod; followed, whatever pod it comes from, and None where
        nothing is new.
        """
        name, next_s = self._name(attempt), 0.0
        shown: dict[str, int] = {}
        while True:
            if time.monotonic() < next_s:
                yield None
                continue
            pods, _ = self.api.list(POD, namespace=self.namespace, labels=f"job-name={name}")
            goes_on = follow and any(phase_of(pod) in ("Pending", "Running") for pod in pods)
            for pod in sorted(pods, key=index_of):
                lines = self._log(pod).splitlines()
                yield from lines[shown.get(name_of(pod), 0) :]
                shown[name_of(pod)] = len(lines)
            if not goes_on:
                return
            next_s = time.monotonic() + _FOLLOW_S

    def _where(self) -> dict[str, str]:
        """Return by Job what the cluster's controller says of its place; nothing where we may not look."""
        try:
            claims = self.api.list(kinds.COMPUTE_CLAIM, namespace=self.namespace)[0] if self.entry.managed else ()
        except ApiFailed as failed:
            if failed.status not in (403, 404):
                raise
            return {}
        placed = ((name_of(claim), each.get("message")) for claim in claims for each in kinds.conditions_of(claim))
        return {name.removeprefix("job-"): str(message) for name, message in placed if message}

    def _devices(self) -> int:
        """Return the devices of nodes that take pods; what pods of others hold is left out."""
        domain, resource = self._domain, self._resource
        labels = ",".join(f"{key}={value}" for key, value in self.entry.nodes.items())
        try:
            nodes, _ = self.api.list(NODE, labels=labels)
        except ApiFailed as failed:
            if failed.status != 403:  # who may not look at nodes goes by the fleet file
                raise
            return domain.num_devices
        ready = [node for node in nodes if is_true(node, "Ready") and not node["spec"].get("unschedulable")]
        if resource is None:
            return min(domain.num_devices, domain.devices_per_node * len(ready))
        allocatable = ((node.get("status") or {}).get("allocatable") or {} for node in ready)
        free = sum(count_of(amounts.get(resource)) for amounts in allocatable)
        names = {name_of(node) for node in ready}
        pods, _ = self.api.list(POD)
        others = sum(
            devices_held(pod, resource)
            for pod in pods
            if (pod.get("spec") or {}).get("nodeName") in names
            and phase_of(pod) in ("Pending", "Running")
            and label_of(pod, objects.SCHEDULER) != self._labels[objects.SCHEDULER]
        )
        return max(0, min(domain.num_devices, free - others))

    @property
    def _domain(self) -> Domain:
        return next(domain for domain in self.workplace.fleet.domains if domain.name == self.domain)

    @property
    def _resource(self) -> str | None:
        """What counts a device of a node; None where it is a CPU."""
        return usual_resource(self._domain.accelerator.vendor) if self.entry.managed else self.entry.resource

    @property
    def _labels(self) -> dict[str, str]:
        key = f"{self.workplace.root}\n{self.domain}"
        return {objects.SCHEDULER: sha256(key.encode()).hexdigest()[:16]}

    @property
    def _selector(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self._labels.items())

    def _name(self, attempt: str) -> str:
        key = f"{self.workplace.root}\n{self.domain}\n{attempt}"
        return f"strata-{sha256(key.encode()).hexdigest()[:16]}"

    def _made(self, kind: ObjectKind, obj: Mapping[str, Any]) -> Object:
        """Return an object that is created, or was."""
        about = {**obj["metadata"], "namespace": self.namespace}
        try:
            return self.api.create(kind, {**obj, "metadata": about})
        except ApiFailed as failed:
            existing = self.api.get(kind, about["name"], self.namespace) if failed.status == 409 else None
            if existing is None:
                raise
            return existing

    def _annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        self.api.patch(CONFIG_MAP, name, self.namespace, body={"metadata": {"annotations": dict(annotations)}})

    def _log(self, pod: Object, tail: int | None = None) -> str:
        try:
            return self.api.log(name_of(pod), self.namespace, tail=tail)
        except ApiFailed:  # its node does not answer, or it has not begun
            return ""

    def _mark_begun(self, attempt: str) -> None:
        """Tell parts of the attempt under other drivers, which look for it, that this one has begun."""
        folder = self.workplace.part(self.domain, attempt)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "began").touch()
