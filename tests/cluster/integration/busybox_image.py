"""An image made here, of one static program: nothing is pulled."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

NAME = "strata.test/busybox:1"
_TYPES = "application/vnd.oci.image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(path: Path, busybox: Path) -> None:
    """Write an OCI layout as a tar, as containerd imports it; without a command it sleeps (as a sandbox)."""
    layer = _tar({"bin/busybox": busybox.read_bytes(), "bin/sh": "busybox", "bin/env": "busybox"})
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox"], "Cmd": ["sleep", "1000000"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = [layer, json.dumps(config).encode()]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_TYPES}.manifest.v1+json",
        "config": _described("config.v1+json", blobs[1]),
        "layers": [_described("layer.v1.tar", layer)],
    }
    blobs.append(json.dumps(manifest).encode())
    entry = _described("manifest.v1+json", blobs[2]) | {"annotations": {"io.containerd.image.name": NAME}}
    files = {f"blobs/{_digest(blob).replace(':', '/')}": blob for blob in blobs}
    files["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    path.write_bytes(_tar(files))


def _described(kind, blob):
    return {"mediaType": f"{_TYPES}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob):
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _tar(files):
    """A tar of files by path: bytes are a program's, text is where a link leads."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                tar.addfile(entry)
            else:
                entry.size, entry.mode = len(content), 0o755
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
