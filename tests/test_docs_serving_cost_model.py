"""docs/serving-cost-model.md names functions that exist, leaves none of the model out, and its example is true."""

import doctest
import importlib
import inspect
import operator
import re

import pytest

from tests import ROOT

PAGE = ROOT / "docs" / "serving-cost-model.md"
NAMED = sorted(
    set(re.findall(r"`((?:[a-z_0-9]+\.)+[a-z_0-9]+:[A-Za-z_][A-Za-z_0-9.]*)`", PAGE.read_text(encoding="utf-8")))
)


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_of_serving_names_exists(name):
    module, _, attribute = name.partition(":")
    assert operator.attrgetter(attribute)(importlib.import_module(f"strata.{module}"))


@pytest.mark.parametrize("room", ["roofline", "memory"])
def test_every_public_function_of_the_serving_cost_is_on_the_page(room):
    module = importlib.import_module(f"strata.simulate.inference.{room}")
    public = {
        f"simulate.inference.{room}:{name}"
        for name, item in inspect.getmembers(module, inspect.isfunction)
        if item.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public
    assert public <= set(NAMED)


def test_the_example_of_serving_prints_what_the_page_shows():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried
    assert not failed
