"""The browser of the tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCREENS = Path(__file__).parents[2] / "out" / "screens"


def find() -> str | None:
    """Return Chromium's path where it and what drives it are here."""
    modules = ("playwright", "axe_playwright_python")
    return shutil.which("chromium") if all(map(importlib.util.find_spec, modules)) else None


class running:  # noqa: N801
    """A command of ours that serves until it is left; gives its address."""

    def __init__(self, command: list[str], home: Path) -> None:
        # No scheduler that runs on this machine is asked: somebody's jobs would be on the pages.
        nobody = {"STRATA_SERVER": "http://127.0.0.1:1", "XDG_STATE_HOME": str(home)}
        self.command, self.environment = command, {**os.environ, **nobody}

    def __enter__(self) -> str:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strata", *self.command], stdout=subprocess.PIPE, text=True,
            env=self.environment,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert "http://" in line, line
        return line[line.index("http://") :].split()[0].rstrip(",")

    def __exit__(self, *_) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=find(), args=["--no-sandbox"]) as launched,
    ):
        yield launched


@pytest.fixture
def tab(chromium):
    """A page that keeps what went wrong on it, and every address it asked."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.faults, page.asked_for = [], []
    page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda request: page.asked_for.append(request.url))
    yield page
    context.close()


REACHED = """() => [...document.querySelectorAll("table, figure")].every(
  wide => (wide.scrollWidth > wide.clientWidth) === (wide.tabIndex === 0))"""
"""Whether what scrolls sideways at this width, and nothing else, is reached by keyboard."""


def shoot(page, name: str) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENS / f"{name}.png", full_page=True)


def look(page, address: str, name: str) -> None:
    """Hold a page against axe and its width, wide and on a phone, light and dark; pictures are kept."""
    from axe_playwright_python.sync_playwright import Axe

    page.wait_for_load_state("load")
    page.evaluate("for (const image of document.images) image.loading = 'eager'")
    page.wait_for_function("() => [...document.images].every(image => image.complete)", timeout=300_000)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for device, width in {"desk": 1280, "phone": 390}.items():
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function(REACHED)
            shoot(page, f"{name}-{device}-{scheme}")
            found = [
                each
                for each in Axe().run(page).response["violations"]
                if each["impact"] in ("serious", "critical")
            ]
            assert found == [], json.dumps(found, indent=1)[:4000]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert {url for url in page.asked_for if not url.startswith((address, "data:"))} == set()
