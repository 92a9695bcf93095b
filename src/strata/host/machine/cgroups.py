"""Which cgroup a process is in, by its path from the machine's root; also where we run in a cgroup namespace.

There the kernel shows paths relative to the namespace's root, those of others as `/../..` (cgroup_namespaces(7));
containers have one on cgroup v2.
"""

from __future__ import annotations

import functools
import os
import posixpath
from pathlib import Path

from strata.host.machine.kernel import read_attribute


def cgroup_of(text: str, root: Path = Path("/")) -> str:
    """Return the path in cgroup v2, else the one of the cpu controller, of a process's file `cgroup`.

    Where the root of our namespace is not to be seen below `root`, steps upwards are left out.
    """
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    paths = [path for number, controllers, path in lines if number == "0" and not controllers]
    paths += [path for _, controllers, path in lines if "cpu" in controllers.split(",")]
    path = next((path for path in paths if path != "/"), "")
    if path.startswith("/.."):
        return posixpath.normpath(f"/{namespace_root(root)}{path}").replace("//", "/")
    return path


@functools.cache
def namespace_root(root: Path) -> str:
    """Return where our own cgroup is below the machine's hierarchy; "" where that is not mounted here."""
    base = root / "sys/fs/cgroup"
    base = base if (base / "cgroup.controllers").exists() else base / "cpu"
    own = str(os.getpid())
    for folder, _, _ in os.walk(base):
        if own in read_attribute(Path(folder) / "cgroup.procs").split():
            return Path(folder).relative_to(base).as_posix()
    return ""
