"""A real control plane on the loopback: etcd and kube-apiserver; kube-scheduler and -controller-manager on demand.

`stand_in_nodes.py` plays kubelets; `real_node.py` has one. `tools/controlplane/build` makes the programs.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import ROOT
from tests.cluster.integration.loopback_certificate import make_certificate
from tests.support.ports import free_ports
from tests.support.real_processes import LIMIT_S, until

PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
CONTROLLERS = (
    "job-controller",
    "replicaset-controller",
    "deployment-controller",
    "daemonset-controller",
    "garbage-collector-controller",
    "disruption-controller",
    "resourceclaim-controller",
)
"""Not node-lifecycle: without kubelets it would mark every node NotReady after 50 s. Not pod-garbage-collector and
not taint-eviction either: what becomes of a pod is for the tests to say."""

USERS = {
    "admin": ("admin", "system:masters"),
    # Its controllers have service accounts of their own elsewhere; here it may all.
    "manager": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "nobody": ("nobody", ""),
}


def find(parts: Sequence[str] = PARTS) -> Path | None:
    """Return the folder with all parts, KUBEBUILDER_ASSETS or `make control-plane`'s; None where none has."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strata" / "control-plane"
    version = next(line.split()[1] for line in _go_mod().splitlines() if line.startswith("\tk8s.io/kubernetes "))
    for folder in (os.environ.get("KUBEBUILDER_ASSETS"), cache / version):
        if folder and all(os.access(Path(folder) / part, os.X_OK) for part in parts):
            return Path(folder)
    return None


def _go_mod() -> str:
    return (ROOT / "tools" / "controlplane" / "go.mod").read_text()


class Part:
    """One process of it, gone with us whatever becomes of us."""

    def __init__(self, program: Path, folder: Path, *arguments: str) -> None:
        self.name, self._log = program.name, folder / f"{program.name}.log"
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        with self._log.open("ab") as log:
            self.popen = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                preexec_fn=_die_with_parent,
            )

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        return f"{self.name}:\n" + self._log.read_bytes()[-4000:].decode(errors="replace")

    @property
    def memory_bytes(self) -> int:
        """What it holds resident."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def is_up(self, condition):
        """Whether `condition` holds; it is not waited for where the process has ended."""
        assert self.popen.poll() is None, f"ended with {self.popen.returncode}: {self.log}"
        return condition()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it, and wait until it is gone."""
        self.popen.send_signal(number)
        self.popen.wait(LIMIT_S)


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class ControlPlane(ExitStack):
    """What is started within it ends with it. `url`: of the API server; `ca`: the file of who signs for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self._programs, self.parts = folder, find(), {}
        assert self._programs is not None, "make control-plane"
        self._port, self._etcd_port, self._peer_port = free_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        try:
            self._keys()
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.start_etcd()
        self.start_api_server()

    def start_etcd(self) -> None:
        """Start etcd and wait until it listens; again, with what it had, where a test has killed it."""
        etcd, peers = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self.etcd = self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        until(lambda: self.etcd.is_up(lambda: _listens(self._etcd_port)), lambda: self.etcd.log)

    def start_api_server(self) -> None:
        """Start kube-apiserver and wait until it is ready; again, where a test has killed it."""
        self.api_server = self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'server.key'}",
            f"--service-account-signing-key-file={self.folder / 'server.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",  # a loopback address is no endpoint it would accept
            # The first would need a controller that gives each namespace a service account; the second taints each
            # new node until the node lifecycle controller, which does not run, finds it ready.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )
        until(lambda: self.api_server.is_up(self._is_ready), lambda: self.api_server.log)

    def _is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def _run(self, name: str, *arguments: str) -> Part:
        part = Part(self._programs / name, self.folder, *arguments)
        self.callback(part.kill)
        self.parts[name] = part
        return part

    def controller_manager(self) -> Part:
        """Start kube-controller-manager where it does not run yet: jobs make pods, owners' ends are followed."""
        if "kube-controller-manager" not in self.parts:
            self._run(
                "kube-controller-manager",
                f"--kubeconfig={self.kubeconfig('manager')}",
                f"--controllers={','.join(CONTROLLERS)}",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            )
        return self.parts["kube-controller-manager"]

    @contextmanager
    def scheduler(self, **config):
        """Run kube-scheduler, `config` in its KubeSchedulerConfiguration (`extenders=[...]`), and yield it."""
        path = self.folder / "scheduler.json"
        made = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig("scheduler")), "qps": 200, "burst": 400},
            "leaderElection": {"leaderElect": False},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        }
        path.write_text(json.dumps(made | config))
        part = Part(
            self._programs / "kube-scheduler",
            self.folder,
            f"--config={path}",
            "--secure-port=0",
            "--authentication-skip-lookup",
        )
        try:
            yield part
        finally:
            part.kill()

    def kubeconfig(self, user: str = "admin", token: str | None = None) -> Path:
        """Return a kubeconfig of one of USERS, or of who has `token`."""
        path = self.folder / f"{user}.kubeconfig"
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user, "user": {"token": token or f"{user}-token"}}],
        }
        path.write_text(json.dumps(made))
        return path

    def service_account(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig of a service account with a token of its own; both are made where they are not."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        status, answer = self.ask("POST", accounts, {"metadata": {"name": name}})
        assert status in (201, 409), answer
        status, answer = self.ask("POST", f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 3600}})
        assert status == 201, answer
        return self.kubeconfig(f"{namespace}-{name}", answer["status"]["token"])

    def kubectl(self, *arguments: str, given: str | None = None, user: str = "admin") -> str:
        """Return what kubectl prints; it has to succeed."""
        command = [self._programs / "kubectl", f"--kubeconfig={self.kubeconfig(user)}", *arguments]
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=LIMIT_S, cwd=self.folder
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, method: str, path: str, body=None):
        """Ask the API server without the client that is to be tested: return (status, JSON or text), as admin."""
        trusted = ssl.create_default_context(cafile=str(self.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=trusted, timeout=300)
        try:
            head = {"Authorization": "Bearer admin-token", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), head)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        return answer.status, json.loads(text) if text.startswith("{") else text

    def _keys(self) -> None:
        self.folder.mkdir(exist_ok=True)
        rows = [f'{user}-token,{name},{user},"{groups}"' for user, (name, groups) in USERS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(rows))
        self.ca, certificate, key = make_certificate(self.folder)
        certificate.rename(self.folder / "server.crt")
        key.rename(self.folder / "server.key")


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def clean_namespace(plane: ControlPlane, name: str) -> None:
    """Delete a namespace's jobs and pods at once: nothing may be left for the scheduler of the next test."""
    for path in ("/apis/batch/v1/namespaces/{}/jobs", "/apis/apps/v1/namespaces/{}/deployments"):
        plane.ask("DELETE", path.format(name), {"propagationPolicy": "Background"})
    pods = f"/api/v1/namespaces/{name}/pods"

    def is_empty():
        plane.ask("DELETE", pods, {"gracePeriodSeconds": 0})
        return not plane.ask("GET", pods)[1]["items"]

    until(is_empty, lambda: f"the pods of {name}")
