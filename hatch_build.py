"""Compiles the quota library into the wheel; where there is no compiler, the wheel goes without and says so."""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class QuotaLibrary(BuildHookInterface):
    """Adds libstrata_quota.so to the package, and the tag of what it runs on to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the install is editable: then `strata run` compiles what the sources say at the time."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        from strata.errors import MissingPart
        from strata.slicing.build import NAME, compile_library, compiler
        from strata.slicing.elf import read_elf

        self.folder = tempfile.TemporaryDirectory()
        library = Path(self.folder.name, NAME)
        try:
            compile_library(library, compiler(), more=("-Werror",))
        except MissingPart as error:
            self.app.display_warning(f"{error}: the wheel goes without it; `strata run` compiles it where it can")
            return
        elf = read_elf(library)
        assert elf is not None
        oldest = max(elf.glibc(), (2, 17))
        libc = f"manylinux_{oldest[0]}_{oldest[1]}" if elf.glibc() > (0, 0) else "linux"
        build_data["force_include"][str(library)] = f"strata/slicing/{NAME}"
        build_data["pure_python"] = False
        # No part of it is Python's, so any Python 3 will do; glibc has to be as new as its symbols.
        build_data["tag"] = f"py3-none-{libc}_{platform.machine()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: the wheel has it."""
        if hasattr(self, "folder"):
            self.folder.cleanup()
