"""A kernel in a dictionary, for steps: it normalises what is written, and dies before or after any operation."""

from __future__ import annotations

from pathlib import Path

from strata.host.apply.machine import KernelFiles, ThreadGone
from strata.host.policy.step import Step

JOB = "/sys/fs/cgroup/job"
NOISE = "/sys/fs/cgroup/batch"
THREAD = "/proc/50/task/51"


class Killed(BaseException):
    """The process was killed here."""


class Kernel(KernelFiles):
    """`state` is all there is: (act, path) to text, and (attach, tid) to the list that has the thread.

    dies_at: the number of the change at which it dies; `after` that change, else before it.
    """

    def __init__(self, *, dies_at: int | None = None, after: bool = False, boot: str = "boot-1") -> None:
        object.__setattr__(self, "root", Path("/nonexistent"))
        self.__dict__.update(dies_at=dies_at, after=after, changes=0, the_boot=boot, refuses={}, gone=set())
        self.__dict__["state"] = {
            ("write", "/sys/fs/cgroup/cgroup.subtree_control"): "memory",
            ("write", f"{JOB}/cgroup.subtree_control"): "",
            ("write", f"{NOISE}/cpu.idle"): "0",
            ("write", f"{NOISE}/cpu.weight"): "70",
            ("write", f"{NOISE}/cpuset.cpus"): "",
            ("write", "/proc/irq/24/smp_affinity_list"): "0-3",
            ("nice", THREAD): "0",
            ("affinity", THREAD): "0-3",
            ("attach", "51"): f"{JOB}/cgroup.threads",
        }

    def boot(self) -> str:
        return self.the_boot

    def check(self, step: Step) -> Step:
        if step.path in self.gone or step.value in self.gone:
            raise ThreadGone("it has ended")
        return step

    def read(self, act, path, value):
        if act == "migrate":
            return ""
        if act == "mkdir":
            return self.state.get((act, path), "")
        key = (act, value) if act == "attach" else (act, path)
        if key not in self.state:
            raise ThreadGone("it is not there any more")
        return self.state[key]

    def before(self, act, path, value):
        return self.read(act, path, value)

    def set(self, act, path, value):
        if path in self.refuses:
            raise self.refuses[path]
        self._mortal(lambda: self._set(act, path, value))

    def remove(self, path):
        def go():
            for key, there in list(self.state.items()):
                if key[1].startswith(f"{path}/") or key == ("mkdir", path):
                    del self.state[key]
                elif key[0] == "attach" and there == f"{path}/cgroup.threads":
                    self.state[key] = f"{path.rpartition('/')[0]}/cgroup.threads"

        self._mortal(go)

    def _mortal(self, change):
        number = self.changes
        self.__dict__["changes"] += 1
        if self.dies_at == number and not self.after:
            raise Killed
        change()
        if self.dies_at == number:
            raise Killed

    def _set(self, act, path, value):
        state, name = self.state, path.rpartition("/")[2]
        if act == "mkdir":
            state[act, path] = "there"
            state["write", f"{path}/cgroup.type"] = "domain"
            state["write", f"{path}/cpu.weight"] = "100"
            state["write", f"{path}/cpuset.cpus"] = ""
        elif act == "attach":
            state[act, value] = path
        elif name == "cgroup.subtree_control":
            words = set(state["write", path].split())
            for word in value.split():
                (words.add if word[0] == "+" else words.discard)(word[1:])
            state["write", path] = " ".join(sorted(words))
        elif name == "cpu.idle":
            if value != state[act, path]:
                state["write", path.replace("cpu.idle", "cpu.weight")] = "0" if value == "1" else "100"
            state[act, path] = value
        elif act != "migrate":
            if (act, path) not in state:
                raise ThreadGone("it is not there any more")
            state[act, path] = value.strip()


def policy() -> tuple[Step, ...]:
    """Every kind of step, in the order that `strata host layers --plain` has them."""
    child = f"{JOB}/strata-critical"
    said = [
        ("nice", THREAD, "-10"),
        ("affinity", THREAD, "1-2"),
        ("write", "/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset"),
        ("mkdir", child, ""),
        ("write", f"{child}/cgroup.type", "threaded"),
        ("write", f"{JOB}/cgroup.subtree_control", "+cpu +cpuset"),
        ("write", f"{child}/cpu.weight", "1000"),
        ("write", f"{child}/cpuset.cpus", "1-2"),
        ("attach", f"{child}/cgroup.threads", "51"),
        ("write", f"{NOISE}/cpu.idle", "1"),
        ("write", f"{NOISE}/cpuset.cpus", "0,3"),
        ("migrate", "/proc/50", "1"),
        ("write", "/proc/irq/24/smp_affinity_list", "0,3"),
    ]
    return tuple(Step(act, path, value, "as told", "critical") for act, path, value in said)
