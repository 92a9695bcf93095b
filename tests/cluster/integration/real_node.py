"""A real node for the tests' control plane: containerd, runc and a kubelet, in namespaces of their own.

Whatever becomes of the tests, what runs in the node ends with them, and its mounts as well: it has its own tree of
processes and of mounts. Cgroups are the machine's: `close` takes those of pods away.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from strata.cluster.api.kinds import NODE, is_true
from tests.cluster.integration import control_plane
from tests.cluster.integration.busybox_image import NAME as IMAGE
from tests.cluster.integration.busybox_image import write_image
from tests.support.ports import free_ports
from tests.support.real_processes import LIMIT_S, until

CGROUPS = Path("/sys/fs/cgroup")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
TOOLS = ("unshare", "nsenter", "runc", "busybox", "ip")
PLUGINS = Path("/usr/lib/cni")
PROGRAMS = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr")
ADDRESS = "10.222.1.1"
"""The kubelet's, on the loopback: the API server reads logs there, and nobody else reaches it."""
FOLDERS = {Path("/var/lib/kubelet"): "kubelet", Path("/usr/local/strata"): "library"}
"""Device plugins' sockets and the quota library are nowhere else: ours are mounted there, for the node alone."""

TUNED = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""What every kubelet sets of the kernel's; given back at the end."""


def find():
    """Return the folder of kubelet and containerd, where Debian's parts of a node are here as well."""
    are_here = all(shutil.which(tool, path=PATH) for tool in TOOLS) and (PLUGINS / "ptp").exists()
    return control_plane.find(PROGRAMS) if are_here else None


@functools.cache
def find_rights():
    """Return whether this machine lets us have a node: root, namespaces, cgroups, and nobody's pods there."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return None
    if any(path.read_text() for root in _pods() for path in root.rglob("cgroup.procs")):
        return None
    probe = _hierarchies()[-1] / "strata-probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return None
    done = subprocess.run(["unshare", "-m", "-p", "-f", "--mount-proc", "true"], capture_output=True)
    return True if done.returncode == 0 else None


def _hierarchies():
    """Return the roots of cgroups: one for each controller in version 1."""
    return sorted(path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists()) or [CGROUPS]


def _pods():
    return [path for root in _hierarchies() if (path := root / "kubepods").exists()]


class RealNode(ExitStack):
    """A ready node by `name`; `kubelet_root` and `library` (the quota library's) are its folders from here."""

    def __init__(self, plane, api, name: str = "node-0") -> None:
        super().__init__()
        self.plane, self.api, self.name = plane, api, name
        self._programs = find()
        # Short: a socket's path has 108 letters at most.
        self._place = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="node", dir="/tmp")))
        self.kubelet_root, self.library = (self._place / name for name in FOLDERS.values())
        self.cdi, self.logs = self._place / "cdi", self._place / "logs"
        self.kubelet = None
        try:
            self._give_address()
            self._keep_kernel()
            self._start_containerd()
            self.start_kubelet()
        except BaseException:
            self.close()
            raise

    def _give_address(self) -> None:
        change = functools.partial(subprocess.run, capture_output=True, env={"PATH": PATH})
        self.callback(change, ["ip", "address", "del", f"{ADDRESS}/32", "dev", "lo"])
        change(["ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo"], check=True)

    def _keep_kernel(self) -> None:
        for path in (Path("/proc/sys") / name for name in TUNED):
            self.callback(path.write_text, path.read_text())
        self.callback(_forget_pods)

    def _start_containerd(self) -> None:
        for folder in (self.kubelet_root, self.library, self.cdi, self._place / "cni"):
            folder.mkdir()
        for folder in FOLDERS:
            folder.mkdir(exist_ok=True)
        network = {
            "cniVersion": "1.0.0",
            "name": "strata",
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self._place / "addresses"),
                        "subnet": "10.222.0.0/24",
                    },
                }
            ],
        }
        (self._place / "cni" / "10.conflist").write_text(json.dumps(network))
        config = self._place / "containerd.toml"
        config.write_text(
            f"""version = 3
root = '{self._place}/root'
state = '{self._place}/state'
disabled_plugins = ['io.containerd.nri.v1.nri']
[grpc]
  address = '{self._socket}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{IMAGE}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ['{self.cdi}']
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['{PLUGINS}']
  conf_dir = '{self._place}/cni'
"""
        )
        mounts = "".join(
            f"mount --bind {self._place / name} {folder} && mount --make-rshared {folder} && "
            for folder, name in FOLDERS.items()
        )
        script = f"{mounts}{{ PATH={self._programs}:{PATH} containerd --config {config} & wait; }}"
        flags = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        self._space = control_plane.Part(Path(shutil.which("unshare")), self._place, *flags, "sh", "-c", script)
        self.callback(self._space.kill)
        until(lambda: self._space.is_up(self._socket.exists), lambda: self._space.log)
        write_image(self._place / "image.tar", Path(shutil.which("busybox", path=PATH)))
        command = [self._programs / "ctr", "-a", self._socket, "-n", "k8s.io", "images", "import"]
        done = subprocess.run(
            [*command, self._place / "image.tar"], capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stderr + self._space.log

    @property
    def _socket(self) -> Path:
        return self._place / "containerd.sock"

    def start_kubelet(self) -> None:
        """Start it, and wait until the node is ready; again, where a test has killed it."""
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": True,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "address": ADDRESS,
            "port": free_ports(1)[0],
            "healthzPort": 0,
            "authentication": {"webhook": {"enabled": False}, "anonymous": {"enabled": True}},
            "authorization": {"mode": "AlwaysAllow"},
            "podLogsDir": str(self.logs),
            "nodeStatusUpdateFrequency": "1s",
            "syncFrequency": "1s",
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            # The machine's disk is not the tests'.
            "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": str(self._place / "volumes"),
        }
        self._registrations.unlink(missing_ok=True)  # of the one before; it takes away all plugins' sockets first
        path = self._place / "kubelet.json"
        path.write_text(json.dumps(config))
        init = _children(self._space.popen.pid)[0]
        self.kubelet = control_plane.Part(
            Path(shutil.which("nsenter")),
            self._place,
            *("--target", str(init), "--mount", "--pid", str(self._programs / "kubelet")),
            *(
                f"--config={path}",
                f"--kubeconfig={self.plane.kubeconfig()}",
                f"--hostname-override={self.name}",
                f"--node-ip={ADDRESS}",
            ),
        )
        self.callback(self.kubelet.kill)
        until(lambda: self.kubelet.is_up(self.is_ready), lambda: self.kubelet.log)

    def kill_kubelet(self) -> None:
        """End it at once; its pods go on."""
        for pid in _children(self.kubelet.popen.pid):
            os.kill(pid, signal.SIGKILL)
        self.kubelet.kill()

    def is_ready(self) -> bool:
        """Whether it says so, and takes device plugins."""
        node = self.api.get(NODE, self.name)
        return node is not None and is_true(node, "Ready") and self._registrations.exists()

    @property
    def _registrations(self) -> Path:
        return self.kubelet_root / "device-plugins" / "kubelet.sock"

    def allocatable(self, resource: str) -> str:
        """How many devices of a resource pods may have."""
        return (self.api.get(NODE, self.name)["status"].get("allocatable") or {}).get(resource, "0")


def _children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _forget_pods():
    """Take away the cgroups of pods, innermost first, as soon as the node's processes are gone."""

    def are_gone():
        for root in _pods():
            for path, _, _ in os.walk(root, topdown=False):
                with suppress(OSError):
                    os.rmdir(path)
        return not _pods()

    until(are_gone, lambda: f"the end of what runs in {_pods()}")
    for folder in FOLDERS:
        with suppress(OSError):
            folder.rmdir()
