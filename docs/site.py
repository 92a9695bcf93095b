"""Builds the documentation as a site: `python docs/site.py build/site`; every link is checked.

The pages link to each other and to README as they lie in the repository, so the site has the same folders.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "README.zh-CN.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "docs",
    "examples",
    "deploy",
    "benchmarks",
)


def build(target: Path) -> None:
    """Write the site. Raises CalledProcessError, with what was printed, where a link leads nowhere."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        pages = work / "pages"
        pages.mkdir()
        for page in PAGES:
            source = ROOT / page
            (shutil.copytree if source.is_dir() else shutil.copy)(source, pages / page)
        shutil.copy(ROOT / "docs" / "mkdocs.yml", work / "mkdocs.yml")
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        subprocess.run(command, cwd=work, check=True, env={**os.environ, "NO_COLOR": "1"})
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / "site", target)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
