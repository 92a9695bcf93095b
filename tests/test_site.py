"""The documentation as a site: links lead somewhere, formulas are drawn, and pages load nothing from elsewhere."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import threading
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests import ROOT
from tests.web.browser import chromium, shoot, tab

__all__ = ["chromium", "tab"]

KATEX = ROOT / "docs" / "katex"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("zensical")
    spec = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    target = tmp_path_factory.mktemp("docs") / "site"
    site.build(target)
    return target


@pytest.mark.long("builds the site: seconds")
def test_the_site_is_built_and_loads_nothing_from_elsewhere(built):
    pages = list(built.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"(https?:[^\"]*)\"", text)
        loaded += re.findall(r"<link[^>]*rel=\"(?:stylesheet|preconnect)\"[^>]*href=\"(https?:[^\"]*)\"", text)
        assert loaded == [], page


def test_what_draws_formulas_is_what_was_published():
    listed = tomllib.loads((KATEX / "VENDOR.toml").read_text())["sha256"]
    files = [KATEX / "LICENSE", *KATEX.glob("katex.*"), *(KATEX / "fonts").iterdir()]
    assert {
        str(file.relative_to(KATEX)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    } == listed


RAW = r"""() => {
  const texts = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT), raw = [];
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.parentElement.closest("code, pre, .katex, script")) continue;
    if (/\\[(\[a-zA-Z]|\$[^$]*[\\_^{][^$]*\$/.test(node.data)) raw.push(node.data);
  }
  return raw;
}"""
"""What of formulas still stands as it was written."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@pytest.mark.real("chromium")
def test_formulas_are_drawn_offline(built, tab):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=built)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        pages = [page for page in built.rglob("index.html") if 'class="arithmatex"' in page.read_text()]
        assert len(pages) > 5
        for page in pages:
            tab.goto(address + str(page.parent.relative_to(built)) + "/")
            tab.wait_for_load_state("networkidle")
            drawn = tab.locator(".arithmatex:has(.katex)")
            assert drawn.count() == tab.locator(".arithmatex").count()
            assert tab.eval_on_selector_all(".katex-error", "all => all.map(one => one.title)") == []
            assert tab.evaluate(RAW) == [], page
            assert tab.evaluate("document.fonts.check('16px KaTeX_Math')")
            shoot(tab, f"docs-{page.parent.name}")
        assert {url for url in tab.asked_for if not url.startswith((address, "data:"))} == set()
        assert tab.faults == []
        server.shutdown()
