"""strata on the tests' control plane: `deploy/` applied, its parts real processes with their own rights."""

from __future__ import annotations

import base64
import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, JOB, NODE, POD, annotations_of, meta, name_of
from tests import ROOT
from tests.cluster import objects
from tests.cluster.builders import A100
from tests.cluster.integration.loopback_certificate import make_certificate
from tests.support.real_processes import Process, until

DEPLOY = ROOT / "deploy"
SYSTEM = "strata-system"
HOOK = "strata-webhook"


class Part(Process):
    """One `strata kube ...` process; `url` once it listens."""

    def __init__(self, log: Path, *arguments: str, scheme: str = "http") -> None:
        super().__init__(log, "kube", *arguments)
        self._scheme = scheme

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"{self._scheme}://127.0.0.1:{self.address}"

    def is_ready(self) -> bool:
        """Whether it says so."""
        assert self.popen.poll() is None, self.log
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


class Strata(ExitStack):
    """Everything of `deploy/`, its webhook reached on the loopback; ends with its processes."""

    def __init__(self, plane, api, folder: Path) -> None:
        super().__init__()
        self.plane, self.api, self._folder, self._count = plane, api, folder, 0
        ca, _, _ = make_certificate(folder)
        self._bundle = base64.b64encode(ca.read_bytes()).decode()
        documents = plane.kubectl("kustomize", str(DEPLOY)).split("\n---\n")
        first = [one for one in documents if "\nkind: Namespace" in f"\n{one}"]
        (hook,) = [one for one in documents if "kind: MutatingWebhookConfiguration" in one]
        rest = [one for one in documents if one != hook]
        self._hook = json.loads(plane.kubectl("create", "--dry-run=client", "-o", "json", "-f", "-", given=hook))
        plane.kubectl("apply", "--server-side", "-f", "-", given="\n---\n".join(first))
        plane.kubectl("apply", "--server-side", "-f", "-", given="\n---\n".join(rest))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        self.callback(plane.kubectl, "delete", "--ignore-not-found", "mutatingwebhookconfiguration", HOOK)

    def part(self, name: str, *arguments: str, scheme: str = "http") -> Part:
        """Start a part with the rights `deploy/` gives it."""
        self._count += 1
        kubeconfig = self.plane.service_account(SYSTEM, f"strata-{name}")
        made = Part(
            self._folder / f"{name}-{self._count}.log",
            name,
            *("--kubeconfig", str(kubeconfig), "--host", "127.0.0.1", "--port", "0"),
            *arguments,
            scheme=scheme,
        )
        self.callback(made.close)
        return made

    def controller(self, *arguments: str) -> Part:
        """Start a controller and wait until it has seen everything."""
        made = self.part("controller", "--namespace", SYSTEM, *arguments)
        until(made.is_ready, lambda: made.log)
        return made

    def webhook(self) -> Part:
        """Start the webhook, and have the API server ask it."""
        made = self.part("webhook", "--cert-dir", str(self._folder), scheme="https")
        hook = json.loads(json.dumps(self._hook))
        for one in hook["webhooks"]:
            one["clientConfig"] = {"url": f"{made.url}/mutate", "caBundle": self._bundle}
        self.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=json.dumps(hook))
        ready = {
            "metadata": {"name": "probe", "labels": {"ai.compute/managed": "true"}},
            "spec": objects.pod_spec(),
        }
        path = "/api/v1/namespaces/default/pods?dryRun=All"

        def answers():
            assert made.popen.poll() is None, made.log
            # The probe asks for nothing: ours says so.
            return "asks for nothing" in str(self.plane.ask("POST", path, ready)[1])

        until(answers, lambda: f"the webhook to be asked: {made.log}")
        return made

    def devices(self, nodes, name: str, model: str = A100, count: int = 8, *, labels=None, **more) -> None:
        """Make a node with devices, as its kubelet, its device plugin and our agent would."""
        # First, since a test before may have left it broken under this name.
        self.found(name, model, count, **more)
        nodes.add(name, allocatable={objects.RESOURCE[model]: count}, labels=labels)

    def found(self, name: str, model: str = A100, count: int = 8, **more) -> None:
        """Publish what an agent found on a node."""
        made = objects.devices(name, model, count, **more)
        head = {key: value for key, value in made.items() if key != "status"}
        self.api.apply(COMPUTE_NODE, head, manager="strata-agent")
        self.api.apply(COMPUTE_NODE, made, subresource="status", manager="strata-agent")

    def submit(self, namespace: str, job) -> None:
        """Create a job as a user would."""
        self.api.create(JOB, {**job, "metadata": {"name": name_of(job), **_asked(job), "namespace": namespace}})

    def job(self, namespace: str, name: str):
        return self.api.get(JOB, name, namespace)

    def pods(self, namespace: str, job: str, *, bound: bool = True):
        """Return a job's pods, once there are as many as it runs at a time, and bound."""

        def found():
            pods, _ = self.api.list(POD, namespace=namespace, labels=f"batch.kubernetes.io/job-name={job}")
            alive = [one for one in pods if not meta(one).get("deletionTimestamp")]
            wanted = self.job(namespace, job)["spec"]["parallelism"]
            is_there = len(alive) == wanted and (not bound or all(one["spec"].get("nodeName") for one in alive))
            return sorted(alive, key=name_of) if is_there else None

        return until(found, lambda: f"pods of {job}: {self.said(namespace, job)}")

    def claim(self, namespace: str, job: str):
        return self.api.get(COMPUTE_CLAIM, f"job-{job}", namespace)

    def routed(self, namespace: str, job: str) -> str:
        """Return the reason of a job's condition, empty while there is none."""
        status = (self.claim(namespace, job) or {}).get("status") or {}
        return next((one["reason"] for one in status.get("conditions") or () if one["type"] == "Routed"), "")

    def said(self, namespace: str, job: str):
        """Everything somebody would look at who waits for a job."""
        claim = self.claim(namespace, job) or {}
        return {"job": self.job(namespace, job), "claim": claim.get("status")}

    def taints(self, node: str):
        return self.api.get(NODE, node)["spec"].get("taints") or []


def _asked(job):
    return {"labels": dict(meta(job)["labels"]), "annotations": dict(annotations_of(job))}
