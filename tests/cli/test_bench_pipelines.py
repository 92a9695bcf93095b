"""`strata bench pipelines`: what is printed, and what is refused; its figures are the machine's."""

from __future__ import annotations

import json

import pytest

from strata.cli.main import run

SMALL = ("--layers", "2", "--hidden", "8", "--requests", "1", "--tokens", "3")


@pytest.mark.real("torch")
def test_one_worker_and_two_in_a_row_are_measured_and_compared(capsys):
    assert run(["bench", "pipelines", "--stages", "2", "--clients", "2", *SMALL, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(one["stages"], one["clients"]) for one in data["runs"]] == [(1, 2), (2, 2)]
    assert all(one["tokens_per_s"] > 0 for one in data["runs"])
    assert data["runs"][1]["hop_s"] > 0
    assert data["trust"] == "measured"


@pytest.mark.parametrize("options", [("--stages", "3"), ("--clients", "0"), ("--hidden", "0")])
def test_what_cannot_be_measured_is_refused(options):
    assert run(["bench", "pipelines", *SMALL, *options]) == 2
