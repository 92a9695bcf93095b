"""docs/cost-model.md names functions that exist, leaves none of the core ones out, and its example is true."""

import doctest
import importlib
import inspect
import operator
import re

import pytest

from tests import ROOT

PAGE = ROOT / "docs" / "cost-model.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:[a-z_0-9]+\.)*[a-z_0-9]+:[A-Za-z_][A-Za-z_0-9.]*)`", TEXT)))


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_exists(name):
    module, _, attribute = name.partition(":")
    assert operator.attrgetter(attribute)(importlib.import_module(f"strata.{module}"))


@pytest.mark.parametrize("room", ["screening", "pipeline", "collective", "copies", "memory", "splitting"])
def test_every_public_function_and_class_of_the_step_time_is_on_the_page(room):
    module = importlib.import_module(f"strata.simulate.{room}")
    public = {
        f"simulate.{room}:{name}"
        for name, item in inspect.getmembers(module)
        if (inspect.isfunction(item) or inspect.isclass(item))
        and item.__module__ == module.__name__
        and not name.startswith("_")
    }
    assert public
    assert public <= set(NAMED)


def test_the_example_prints_what_the_page_shows():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried
    assert not failed


def test_displayed_formulas_are_closed():
    outside_code = re.sub(r"```.*?```|`[^`]*`", "", TEXT, flags=re.DOTALL)
    assert outside_code.count("$$") % 2 == 0
    inline = outside_code.replace("$$", "")
    assert inline.count("$") % 2 == 0
