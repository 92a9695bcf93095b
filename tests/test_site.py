"""The documentation as a site: every link leads somewhere, and pages load nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests import ROOT


@pytest.mark.long("builds the site: seconds")
def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("zensical")
    spec = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    site.build(tmp_path / "site")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"(https?:[^\"]*)\"", text)
        loaded += re.findall(r"<link[^>]*rel=\"(?:stylesheet|preconnect)\"[^>]*href=\"(https?:[^\"]*)\"", text)
        assert loaded == [], page
