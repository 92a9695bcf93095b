"""The code layer: an image with the user's program, shown in a container of another image.

The code lies at the image's root. From 1.34 on it is an image volume; below that an init container copies it, for
which the image needs `sh` and `cp` (busybox will do), and its folders that are a system's are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

IMAGE_VOLUMES: Final = 34
"""The first minor version where image volumes are used. There the gate ImageVolume is off unless an operator
switched it on (it is on from 1.35, and always from 1.36): without it, say 33."""

VOLUME: Final = "strata-code"
_INTO: Final = "/strata-code"
COPY: Final = """\
system=" bin boot dev etc home lib lib32 lib64 libx32 media mnt opt proc root run sbin srv sys tmp usr var "
cd "$1" || exit 1
for one in * .[!.]*; do
  case "$system strata-code .dockerenv " in *" $one "*) continue;; esac
  [ ! -e "$one" ] || cp -a "$one" "$2/" || exit 1
done
"""
"""From the folder `$1` into `$2`."""


@dataclass(frozen=True, slots=True)
class CodeLayer:
    """What shows the code: volumes of the pod, mounts of its container, an init container where one copies."""

    volumes: tuple[Mapping[str, Any], ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    init: Mapping[str, Any] | None = None


def code_layer(image: str, mount: str, *, server_minor: int) -> CodeLayer:
    """Return what shows an image's files at `mount`; nothing for no image."""
    if not image:
        return CodeLayer()
    mounts = ({"name": VOLUME, "mountPath": mount, "readOnly": True},)
    if server_minor >= IMAGE_VOLUMES:
        source = {"reference": image, "pullPolicy": "IfNotPresent"}
        return CodeLayer(({"name": VOLUME, "image": source},), mounts)
    init = {
        "name": VOLUME,
        "image": image,
        "command": ["sh", "-c", COPY, "copy", "/", _INTO],
        "volumeMounts": [{"name": VOLUME, "mountPath": _INTO}],
    }
    return CodeLayer(({"name": VOLUME, "emptyDir": {}},), mounts, init)
