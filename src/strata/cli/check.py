"""`strata check`: what works on this machine, and how to get the rest. Looks only; imports and starts nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import click

from strata.cli.output import emit, output_option, terminal_width
from strata.errors import MissingPart, StrataError, install
from strata.tables import Shown, rows

State = Literal["ok", "missing", "optional-missing"]


@dataclass(frozen=True, slots=True)
class Component:
    """One thing strata can use. `detail` says which one was found; `get` is what to do where none was."""

    name: str
    state: State
    detail: str
    used_for: str
    get: str


_BASE: Final = {
    "numpy": "all arithmetic",
    "onnxruntime": "the learned policy",
    "prometheus_client": "metrics of servers",
    "array-api-compat": "the cost model on numpy or torch arrays",
    "pydantic": "reading files strictly",
    "PyYAML": "reading files",
    "simpy": "the event simulator",
    "rich": "tables and progress bars",
}
_TRAIN: Final = {
    "torch": "training a policy; planning on a GPU",
    "onnx": "exporting a trained policy",
    "gymnasium": "the training environments",
    "ray": "rollouts and sweeps on several machines",
}
_SERVE: Final = {
    "starlette": "the gateway and the workers of strata serve",
    "uvicorn": "their HTTP servers",
    "httptools": "how these read requests",
    "httpx": "what they ask of each other",
}
_MODULES: Final = {"array-api-compat": "array_api_compat", "PyYAML": "yaml"}


@click.command()
@output_option
def check(output: str) -> None:
    """Say what works on this machine, and how to get the rest.

    Exits 5 if a part is missing that every command needs; what is optional may be absent.

    \b
    strata check
    strata check -o json
    """
    parts = list(survey(os.environ))
    emit([asdict(part) for part in parts], output, _show(parts))
    absent = [part.name for part in parts if part.state == "missing"]
    if absent:
        raise MissingPart(f"not installed: {', '.join(absent)}", hint="pip install -e ., in a clone of strata")


def survey(environment: Mapping[str, str], *, root: Path = Path("/")) -> Iterator[Component]:
    """Yield every part, found or not. `root` is where the file system starts."""
    yield _part("Python", platform.python_version(), "everything", "", base=True)
    for name, used_for in _BASE.items():
        yield _part(name, _library(name), used_for, "pip install -e ., in a clone of strata", base=True)
    for name, used_for in _TRAIN.items():
        yield _part(name, _library(name), used_for, install("train"))
    for name, used_for in _SERVE.items():
        yield _part(name, _library(name), used_for, install("serve"))
    path = environment.get("PATH", "")
    compiler = next(filter(None, (shutil.which(name, path=path) for name in ("cc", "gcc", "clang"))), None)
    yield _part("C compiler", compiler, "building the memory-quota library", "apt-get install gcc, or your own")
    yield _astra_sim(environment)
    yield _part("kubeconfig", _kubeconfig(environment), "commands on a Kubernetes cluster", "set KUBECONFIG")
    driver = _first_line(root / "proc/driver/nvidia/version")
    yield _part("NVIDIA driver", driver, "measuring accelerators here", "install the driver; planning needs none")
    sched_ext = _first_line(root / "sys/kernel/sched_ext/state")
    yield _part(
        "sched_ext", sched_ext, "scheduling threads of this host", "Linux 6.12+ with CONFIG_SCHED_CLASS_EXT"
    )
    terminal = f"{shutil.get_terminal_size().columns} columns" if sys.stdout.isatty() else None
    yield _part("terminal", terminal, "colours and progress bars", f"plain text of {terminal_width()} columns")


def _part(name: str, detail: str | None, used_for: str, get: str, *, base: bool = False) -> Component:
    if detail is not None:
        return Component(name, "ok", detail, used_for, "")
    return Component(name, "missing" if base else "optional-missing", "", used_for, get)


def _library(name: str) -> str | None:
    """Return the version of an installed library, or None where it is not here or has no code."""
    try:
        if importlib.util.find_spec(_MODULES.get(name, name)) is None:
            return None
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _astra_sim(environment: Mapping[str, str]) -> Component:
    from strata.simulate.astra.discover import find, is_checked

    name, used_for = "ASTRA-sim", "a second opinion on a step: simulate --backend astra"
    get = "build its analytical backend; put it on PATH, or its folder in STRATA_ASTRA_SIM (ns-3's: STRATA_NS3)"
    try:
        binaries = asdict(find(environment))
    except StrataError as error:
        return Component(name, "optional-missing", "", used_for, "; ".join(str(error).splitlines()))
    backends = [
        f"{kind}: {binary} ({'answered a known case' if is_checked(binary, environment) else 'not asked yet'})"
        for kind, binary in binaries.items()
        if binary is not None
    ]
    return _part(name, ", ".join(backends) or None, used_for, get)


def _kubeconfig(environment: Mapping[str, str]) -> str | None:
    default = os.path.join(environment.get("HOME", ""), ".kube", "config")
    named = environment.get("KUBECONFIG") or default
    return next((path for path in named.split(os.pathsep) if path and os.path.isfile(path)), None)


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip()
    except OSError:
        return None


def _show(parts: list[Component]) -> Shown:
    body = ((part.name, part.state, part.detail, part.used_for) for part in parts)
    yield rows(("part", "state", "found", "used for"), body)
    yield ""
    yield rows(("not here", "how to get it"), ((part.name, part.get) for part in parts if part.get))
