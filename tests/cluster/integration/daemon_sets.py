"""DaemonSets of `deploy/` on a real node: as they are, but their program is this machine's, and not an image's."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from strata.cluster.api.kinds import POD, is_true, name_of
from tests import ROOT
from tests.cluster.integration.busybox_image import NAME as IMAGE
from tests.support.real_processes import until

SYSTEM = "strata-system"


class NodePart:
    """The pod of a DaemonSet, which is applied and waited for; `options` are added to its arguments."""

    def __init__(self, node, manifest: str, *options: str) -> None:
        self._node = node
        (made,) = (each for each in yaml.safe_load_all((ROOT / "deploy" / manifest).read_text()) if each)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        container["args"] += options
        container["command"] = [sys.executable, "-m", "strata"]
        container["env"] = [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]  # as the image of deploy/Dockerfile
        run_from_machine(made["spec"]["template"]["spec"], *_pythons())
        self._name, self._port = made["metadata"]["name"], container["ports"][0]["containerPort"]
        node.plane.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump(made))
        self.pod = until(self._ready, lambda: self.log)

    def _ready(self):
        pods, _ = self._node.api.list(POD, namespace=SYSTEM)
        own = (pod for pod in pods if name_of(pod).startswith(f"{self._name}-"))
        return next((pod for pod in own if is_true(pod, "Ready")), None)

    @property
    def log(self) -> str:
        """What its containers wrote."""
        paths = sorted(self._node.logs.glob(f"{SYSTEM}_{self._name}-*/*/*.log"))
        return "\n".join(path.read_text() for path in paths)

    def samples(self, name: str, **labels: str) -> list[float]:
        """Return the values of a metric with these labels."""
        with urllib.request.urlopen(
            f"http://{self.pod['status']['podIP']}:{self._port}/metrics", timeout=30
        ) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return [sample.value for sample in samples if labels.items() <= sample.labels.items()]


def run_from_machine(pod, *places: Path) -> None:
    """Let a pod's container have folders of this machine, with what C programs need, where they are here."""
    (container,) = pod["containers"]
    container["image"] = IMAGE
    for number, place in enumerate(_outermost({*places, Path("/lib"), Path("/lib64")})):
        name = f"machine-{number}"
        pod.setdefault("volumes", []).append({"name": name, "hostPath": {"path": str(place)}})
        mount = {"name": name, "mountPath": str(place), "readOnly": True}
        container.setdefault("volumeMounts", []).append(mount)


def _pythons():
    return {Path("/usr"), ROOT, Path(sys.prefix), Path(sys.base_prefix)}


def _outermost(places):
    return sorted(place for place in places if place.is_dir() and not places & set(place.parents))
