"""Runtime profile files: `kind: RuntimeProfile`, and the bundled ones.

What a profile says ends up in other people's containers, so names, variables and paths are checked for form here.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from strata.cluster.api.annotations import FRAMEWORKS
from strata.cluster.api.forms import IMAGE, MOST_CHARACTERS, is_plain_path
from strata.cluster.scheduling.profile import Mount, RuntimeProfile
from strata.errors import BadFile, Fault, UsageError
from strata.files import Document, FileModel, bundled, bundled_names, read_document
from strata.fleet.catalogue import accelerator

_FOLDER: Final = Path(__file__).parent / "profiles"
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_QUALIFIED: Final = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
NOT_FOR_PODS: Final = ("/", "/etc", "/var", "/var/lib")
NO_TREE_FOR_PODS: Final = (
    "/boot", "/etc/kubernetes", "/proc", "/root", "/run", "/sys", "/var/lib/etcd", "/var/lib/kubelet", "/var/run",
)  # fmt: skip
"""Folders of the host no pod gets by a profile; of the latter nothing below them: sockets, keys, the kernel."""

# The same without Python, for editors and API servers: no `..`, no control characters, nothing a shell expands.
_REST: Final = r"[^/:$\x00-\x1f\x7f]"
_START: Final = r"[^/.:$\x00-\x1f\x7f]"
_PART: Final = rf"(?:{_START}{_REST}*|\.{_START}{_REST}*|\.\.{_REST}+)"
_PATH_PATTERN: Final = rf"^(?:/(?:{_PART}|\.)?)+$"
_HOST_PATTERN: Final = rf"^(?:/{_PART})+/?$"
_TEXT_PATTERN: Final = r"^(?:[^$\x00-\x1f\x7f]|\$+(?:[^$(\x00-\x1f\x7f]|$))*$"


def _shaped(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise PydanticCustomError("shape", "{text}", {"text": f"{value[:80]!a} is not {what}"})
        return value

    return AfterValidator(check)


def _as(pattern: str, longest: int = MOST_CHARACTERS - 1) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "maxLength": longest})


def _whole(pattern: re.Pattern[str], longest: int) -> WithJsonSchema:
    return _as(f"^(?:{pattern.pattern})$", longest)


def _path(value: str) -> str:
    if not is_plain_path(value):
        raise PydanticCustomError("path", "{text}", {"text": f"{value[:80]!a} is not a plain absolute path"})
    return value


def _host_path(value: str) -> str:
    path = PurePosixPath("/" + _path(value).lstrip("/"))  # Python keeps two slashes, and Linux does not
    if str(path) in NOT_FOR_PODS or any(path.is_relative_to(tree) for tree in NO_TREE_FOR_PODS):
        raise PydanticCustomError("path", "{text}", {"text": f"{value} of the host is not for pods"})
    return value


def _text(value: str) -> str:
    if not value.isprintable() or len(value) > MOST_CHARACTERS or "$(" in value:
        raise PydanticCustomError("text", "{text}", {"text": "has characters that a variable should not have"})
    return value


Name = Annotated[str, _shaped(_NAME, "a name (small letters, digits, dots, dashes)"), _whole(_NAME, 63)]
Variable = Annotated[str, _shaped(_VARIABLE, "the name of a variable"), _whole(_VARIABLE, 128)]
Image = Annotated[str, _shaped(IMAGE, "an image with a tag or a digest"), _whole(IMAGE, 384)]
Resource = Annotated[str, _shaped(_QUALIFIED, "a resource name (domain/name)"), _whole(_QUALIFIED, 317)]
Text = Annotated[str, AfterValidator(_text), _as(_TEXT_PATTERN, MOST_CHARACTERS)]
PlainPath = Annotated[str, AfterValidator(_path), _as(_PATH_PATTERN)]
HostPath = Annotated[str, AfterValidator(_host_path), _as(_HOST_PATTERN)]


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


class ProfileFields(FileModel):
    """What a profile says, in a file or in an object of the API server."""

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


class _Head(FileModel):
    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["RuntimeProfile"]
    name: Name


class ProfileFile(ProfileFields, _Head):
    """`kind: RuntimeProfile`."""


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
    return build(file.name, file, document)


def build(name: str, fields: ProfileFields, document: Document, *, under: tuple[str, ...] = ()) -> RuntimeProfile:
    """Build a profile from checked fields, which stand `under` some keys of a document. Raises BadFile."""
    faults: list[Fault] = []
    for position, model in enumerate(fields.models):
        try:
            card = accelerator(model)
        except UsageError as error:
            faults.append(document.fault((*under, "models", position), str(error)))
            continue
        if card.vendor != fields.vendor:
            message = f"{card.name} is made by {card.vendor}, and one profile is of one vendor"
            faults.append(document.fault((*under, "models", position), message))
    if faults:
        raise BadFile(faults)
    same = fields.model_dump(include=set(ProfileFields.model_fields))
    same |= {
        "models": tuple(accelerator(model).name for model in fields.models),
        "mounts": tuple(Mount(**mount) for mount in same["mounts"]),
        "entrypoints": {engine: tuple(words) for engine, words in fields.entrypoints.items()},
        "tolerations": tuple({key: word for key, word in each.items() if word} for each in same["tolerations"]),
    }
    return RuntimeProfile(name, **same)
