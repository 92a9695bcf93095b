"""The browser of the tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import shutil


def find() -> str | None:
    """Return Chromium's path where it and what drives it are here."""
    modules = ("playwright", "axe_playwright_python")
    return shutil.which("chromium") if all(map(importlib.util.find_spec, modules)) else None
