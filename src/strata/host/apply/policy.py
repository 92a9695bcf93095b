"""Steps from the file that `strata host layers --plain -o json` writes: only what such steps may touch.

The file is a list of things that root will write, so nothing is taken on trust: an act touches only files that a
policy has business with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, NoReturn

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from strata.errors import BadFile, UsageError
from strata.files import FileModel, read_document
from strata.host.policy.step import Act, Step
from strata.host.threads.pools import LayerName

LIST: Final = r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*"
"""CPUs or NUMA nodes as the kernel writes them, none of them beyond all sense."""
_IN_CGROUP: Final = r"/sys/fs/cgroup(/[^/\0]+)*/"
PLACES: Final[Mapping[Act, re.Pattern[str]]] = {
    "nice": re.compile(r"/proc/\d{1,10}/task/\d{1,10}"),
    "affinity": re.compile(r"/proc/\d{1,10}/task/\d{1,10}"),
    "scheduler": re.compile(r"/proc/\d{1,10}/task/\d{1,10}"),
    "migrate": re.compile(r"/proc/\d{1,10}"),
    "mkdir": re.compile(rf"({_IN_CGROUP}|/sys/fs/resctrl/)strata-[a-z]+"),
    "attach": re.compile(rf"{_IN_CGROUP}strata-[a-z]+/cgroup\.threads|/sys/fs/resctrl/strata-[a-z]+/tasks"),
    "write": re.compile(
        rf"{_IN_CGROUP}(cpu\.weight|cpu\.idle|cpuset\.cpus|cpuset\.mems|cgroup\.subtree_control)"
        rf"|{_IN_CGROUP}strata-[a-z]+/cgroup\.type"
        r"|/sys/fs/resctrl/strata-[a-z]+/schemata"
        r"|/proc/irq/\d{1,10}/smp_affinity_list"
        r"|/sys/devices/system/cpu/cpu\d{1,5}/cpufreq/scaling_min_freq"
    ),
}
"""What each act may touch."""
VALUES: Final[Mapping[str, re.Pattern[str]]] = {
    "nice": re.compile(r"-?(1?\d|20)"),
    "affinity": re.compile(LIST),
    # No real-time priority from a file: a thread that never sleeps would keep its CPU.
    "scheduler": re.compile(r"(OTHER|BATCH|IDLE) 0"),
    "migrate": re.compile(r"\d{1,4}"),
    "mkdir": re.compile(""),
    "attach": re.compile(r"[1-9]\d{0,9}"),
    "cpu.weight": re.compile(r"\d{1,5}"),
    "cpu.idle": re.compile("[01]"),
    "cpuset.cpus": re.compile(rf"({LIST})?"),
    "cpuset.mems": re.compile(rf"({LIST})?"),
    "cgroup.subtree_control": re.compile(r"\+(cpu|cpuset)( \+(cpu|cpuset))?"),
    "cgroup.type": re.compile("threaded"),
    "schemata": re.compile(r"MB:\d{1,4}=\d{1,3}(;\d{1,4}=\d{1,3})*"),
    "smp_affinity_list": re.compile(LIST),
    "scaling_min_freq": re.compile(r"\d{1,10}"),
}
"""What may be written, by act or by the name of the file."""


class _StepModel(FileModel):
    act: Act
    path: str
    value: str
    why: str
    layer: LayerName
    start_ticks: Annotated[int, Field(strict=True, ge=0)] = 0

    @field_validator("path")
    @classmethod
    def _may_be_touched(cls, path: str, info: ValidationInfo) -> str:
        act = info.data.get("act")  # absent where it is at fault itself
        if act is not None and (not PLACES[act].fullmatch(path) or "/../" in path or "/./" in path):
            _refuse(f"{path!r} is not allowed for act {act!r}")
        return path

    @field_validator("value")
    @classmethod
    def _may_be_written(cls, value: str, info: ValidationInfo) -> str:
        path, act = info.data.get("path"), info.data.get("act")
        name = path.rpartition("/")[2] if path is not None and act == "write" else act
        if path is not None and name is not None and not VALUES[name].fullmatch(value):
            _refuse(f"{value!r} is not allowed there")
        return value


class _StepsModel(FileModel):
    model_config = ConfigDict(extra="ignore")  # such a file also says what was left out
    steps: tuple[_StepModel, ...]


def load(path: str) -> tuple[Step, ...]:
    """Read the steps of a file. Raises BadFile with every fault; UsageError for a policy of scx_layered."""
    document = read_document(path)
    data = document.data
    if isinstance(data, list) and any(isinstance(entry, dict) and "matches" in entry for entry in data):
        raise UsageError(f"{path}: a policy of scx_layered", hint=f"strata host run-layered {path}")
    if not isinstance(data, dict) or not isinstance(data.get("steps"), list):
        fault = document.fault((), "should hold a list `steps`")
        raise BadFile([fault], hint="strata host layers --plain -o json > policy.json")
    return tuple(Step(**step.model_dump()) for step in document.check(_StepsModel).steps)


def _refuse(message: str) -> NoReturn:
    raise PydanticCustomError("not_allowed", "{message}", {"message": message})
