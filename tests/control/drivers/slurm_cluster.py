"""A real Slurm cluster on this machine: slurmctld, a slurmd a node, munged, all children of the test."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_ports

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def find():
    """Return the tools where a cluster can be had: Debian's slurm-wlm, slurm-client and munge, and root."""
    found = [shutil.which(tool, path=_PATH) for tool in TOOLS]
    return found if all(found) and os.geteuid() == 0 else None


def _die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@contextmanager
def munge():
    """Yield the socket of a munged of our own, in a folder that clusters may be in, too.

    Its path is short wherever tests have their files: a socket's has 108 letters at most, slurmstepd's as well.
    """
    place = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    place.chmod(0o755)
    (place / "key").write_bytes(os.urandom(128))
    os.chmod(place / "key", 0o600)
    for path in (place, place / "key"):
        shutil.chown(path, "munge", "munge")
    options = ("socket", "key-file", "pid-file", "log-file", "seed-file")
    named = [f"--{name}={place / name.partition('-')[0]}" for name in options]
    command = [shutil.which("munged", path=_PATH), "--foreground", "--force", *named]
    process = subprocess.Popen(
        command, user="munge", group="munge", stderr=subprocess.DEVNULL, preexec_fn=_die_with_parent
    )
    try:
        while not (place / "socket").exists():
            assert process.poll() is None
            time.sleep(0.05)
        yield place / "socket"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


class Cluster:
    """One cluster; `conf` is what SLURM_CONF shall name. gpus: of a node, character devices that are none."""

    def __init__(self, folder, name, *, munge_socket, nodes=1, gpus=0):
        self.folder, self.name, self.nodes = folder / name, name, nodes
        self.conf = self.folder / "slurm.conf"
        for part in ("state", "spool", "log"):
            (self.folder / part).mkdir(parents=True)
        ports = free_ports(nodes + 1)
        host = socket.gethostname()
        gres = f" Gres=gpu:{gpus}" if gpus else ""
        lines = [
            f"ClusterName={name}", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={ports[0]}",
            "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge", f"AuthInfo=socket={munge_socket}",
            "CredType=cred/munge", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "MpiDefault=none", "ReturnToService=2",
            "SlurmdParameters=config_overrides", f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n", f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid", "SchedulerParameters=sched_min_interval=100000",
            "KillWait=5", *(["GresTypes=gpu"] if gpus else []),
        ]  # fmt: skip
        lines += [
            f"NodeName=n{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000{gres}"
            for index, port in enumerate(ports[1:])
        ]
        lines.append(f"PartitionName=main Nodes=n[0-{nodes - 1}] Default=YES MaxTime=60 State=UP")
        self.conf.write_text("\n".join(lines) + "\n")
        if gpus:
            for index in range(gpus):
                os.mknod(self.folder / f"gpu{index}", 0o020666, os.makedev(1, 3))
            text = f"NodeName=n[0-{nodes - 1}] Name=gpu File={self.folder}/gpu[0-{gpus - 1}]\n"
            (self.folder / "gres.conf").write_text(text)
        self.daemons = {}

    def up(self):
        """Start the daemons and wait until every node is idle."""
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        for index in range(self.nodes):
            self.start_node(index)
        self.settle()

    def settle(self):
        """Return once every node is idle and answers: for a while after a resume it is `idle*`."""
        while self.ask("sinfo", "-hN", "-o", "%t").split() != ["idle"] * self.nodes:
            assert self.daemons["slurmctld"].poll() is None, (self.folder / "log/slurmctld").read_text()
            time.sleep(0.2)

    def clear(self):
        """End every job, and return once nothing of any is left and every node is idle."""
        while self.ask("squeue", "-h").strip():
            self.ask("scancel", "--signal=KILL", "--user=root")
            self.ask("scancel", "--user=root")  # those that wait, too
            time.sleep(0.2)
        self.settle()

    def start_node(self, index):
        self._start(f"n{index}", "slurmd", "-D", "-N", f"n{index}", "-f", str(self.conf))

    def _start(self, key, tool, *arguments):
        with open(self.folder / "log" / key, "ab") as log:
            command = [shutil.which(tool, path=_PATH), *arguments]
            self.daemons[key] = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_die_with_parent)

    def ask(self, *command):
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        return done.stdout

    def down(self):
        """End every job, then the daemons."""
        if "slurmctld" in self.daemons and self.daemons["slurmctld"].poll() is None:
            self.ask("scancel", "--signal=KILL", "--user=root")
            end = time.monotonic() + 20
            while self.ask("squeue", "-h").strip() and time.monotonic() < end:
                time.sleep(0.2)
        for daemon in reversed(self.daemons.values()):
            daemon.kill()
            daemon.wait()
