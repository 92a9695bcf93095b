"""Runtime profile files: `kind: RuntimeProfile`, and the bundled ones.

What a profile says ends up in other people's containers, so names, variables and paths are checked for form here.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from strata.cluster.annotations import FRAMEWORKS
from strata.cluster.profile import Mount, RuntimeProfile
from strata.errors import BadFile, Fault, UsageError
from strata.files import Document, FileModel, bundled, bundled_names, read_document
from strata.fleet.catalogue import accelerator

_FOLDER: Final = Path(__file__).parent / "profiles"
_MOST: Final = 4096
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_QUALIFIED: Final = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_IMAGE: Final = re.compile(
    r"[a-z0-9][A-Za-z0-9._:/-]{0,254}(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})"
)
_FORBIDDEN_HOSTS: Final = ("/", "/etc", "/root", "/proc", "/sys", "/var/run", "/run", "/boot")


def _shaped(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise PydanticCustomError("shape", "{text}", {"text": f"{value[:80]!a} is no {what}"})
        return value

    return AfterValidator(check)


def _path(value: str) -> str:
    path = PurePosixPath(value)
    is_plain = value.isprintable() and len(value) < _MOST and ":" not in value and "$" not in value
    if not (is_plain and path.is_absolute() and ".." not in path.parts):
        raise PydanticCustomError("path", "{text}", {"text": f"{value[:80]!a} is no plain absolute path"})
    return value


def _host_path(value: str) -> str:
    if str(PurePosixPath(_path(value))) in _FORBIDDEN_HOSTS:
        raise PydanticCustomError("path", "{text}", {"text": f"{value} of the host is not for pods"})
    return value


def _text(value: str) -> str:
    if not value.isprintable() or len(value) > _MOST or "$(" in value:
        raise PydanticCustomError("text", "{text}", {"text": "has characters that a variable should not have"})
    return value


Name = Annotated[str, _shaped(_NAME, "name (small letters, digits, dots, dashes)")]
Variable = Annotated[str, _shaped(_VARIABLE, "name of a variable")]
Image = Annotated[str, _shaped(_IMAGE, "image with a tag or a digest")]
Resource = Annotated[str, _shaped(_QUALIFIED, "resource name (domain/name)")]
Text = Annotated[str, AfterValidator(_text)]
PlainPath = Annotated[str, AfterValidator(_path)]
HostPath = Annotated[str, AfterValidator(_host_path)]


class MountEntry(FileModel):
    """A path of the host in the container; read only unless said otherwise."""

    name: Name
    host_path: HostPath
    container_path: PlainPath
    is_read_only: bool = True


class TolerationEntry(FileModel):
    """A toleration, as Kubernetes writes it."""

    key: Text = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: Text = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""


class ProfileFile(FileModel):
    """`kind: RuntimeProfile`."""

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["RuntimeProfile"]
    name: Name
    vendor: Annotated[Text, Field(min_length=1)]
    framework: Literal["pytorch", "paddle", "mindspore", "vllm"]
    models: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    image: Image
    resource: Resource
    env: dict[Variable, Text] = Field(default={})
    no_p2p_env: dict[Variable, Text] = Field(default={})
    devices_env: Variable | Literal[""] = ""
    mounts: list[MountEntry] = Field(default=[])
    code_mount: PlainPath = "/workspace"
    entrypoints: dict[Name, Annotated[list[Text], Field(min_length=1)]] = Field(default={})
    node_selector: dict[Text, Text] = Field(default={})
    tolerations: list[TolerationEntry] = Field(default=[])
    source: Text = ""
    was_tried: bool = False


def load_profile(source: str | Path) -> RuntimeProfile:
    """Read a profile file, or a bundled profile by its name where no such file exists.

    Raises BadFile with every fault, UsageError where there is neither file nor bundled profile.
    """
    path = Path(source)
    is_file = path.is_file() or path.suffix or len(path.parts) > 1
    return profile_from_document(read_document(path if is_file else bundled(_FOLDER, str(source), what="profile")))


@cache
def bundled_profiles() -> tuple[RuntimeProfile, ...]:
    """Return the bundled profiles, by framework (PyTorch first, which jobs that name none get) and name."""
    profiles = [load_profile(_FOLDER / f"{name}.yaml") for name in bundled_names(_FOLDER)]
    return tuple(sorted(profiles, key=lambda profile: (FRAMEWORKS.index(profile.framework), profile.name)))


def profile_from_document(document: Document) -> RuntimeProfile:
    """Build a profile from a parsed file. Raises BadFile with every fault."""
    file = document.check(ProfileFile)
    faults: list[Fault] = []
    for position, model in enumerate(file.models):
        try:
            card = accelerator(model)
        except UsageError as error:
            faults.append(document.fault(("models", position), str(error)))
            continue
        if card.vendor != file.vendor:
            message = f"{card.name} is made by {card.vendor}, and one profile is of one vendor"
            faults.append(document.fault(("models", position), message))
    if faults:
        raise BadFile(faults)
    return RuntimeProfile(
        file.name,
        file.vendor,
        tuple(accelerator(model).name for model in file.models),
        file.framework,
        file.image,
        file.resource,
        env=file.env,
        no_p2p_env=file.no_p2p_env,
        mounts=tuple(Mount(m.name, m.host_path, m.container_path, m.is_read_only) for m in file.mounts),
        code_mount=file.code_mount,
        entrypoints={name: tuple(words) for name, words in file.entrypoints.items()},
        node_selector=file.node_selector,
        tolerations=tuple(_toleration(entry) for entry in file.tolerations),
        devices_env=file.devices_env,
        source=file.source,
        was_tried=file.was_tried,
    )


def _toleration(entry: TolerationEntry) -> dict[str, str]:
    return {key: value for key, value in entry.model_dump().items() if value}
