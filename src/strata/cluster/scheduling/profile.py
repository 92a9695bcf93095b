"""A runtime profile: what a pod needs to run on one kind of accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the host in the container."""

    name: str
    host_path: str
    container_path: str
    is_read_only: bool = True


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """What the webhook injects for cards of some models.

    models: catalogue names the profile is for. resource: the device plugin's resource name, a whole device each.
    no_p2p_env: besides `env`, where devices of a node cannot reach each other's memory.
    code_mount: where the user's code layer appears. entrypoints: by engine name, for inference.
    devices_env: the variable that names the devices a pod may see. source: where image and settings were read.
    was_tried: somebody ran it on such a card; shown to users.
    """

    name: str
    vendor: str
    models: tuple[str, ...]
    framework: str
    image: str
    resource: str
    env: Mapping[str, str] = field(default_factory=dict)
    no_p2p_env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    code_mount: str = "/workspace"
    entrypoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    devices_env: str = ""
    source: str = ""
    was_tried: bool = False
