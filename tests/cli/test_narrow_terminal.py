"""At 40 columns texts are folded, and numbers stay whole."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cli.output import show
from strata.tables import rows


@pytest.mark.parametrize(
    "command",
    [["gpus"], ["gpus", "h100_sxm"], ["gpus", "--need", "160GB memory"], ["model"], ["model", "llama-3.1-8b"]],
)
def test_no_number_of_a_table_is_split(command):
    def numbers(columns):
        answer = CliRunner().invoke(cli, command, env={"COLUMNS": columns})
        assert answer.exit_code == 0
        return sorted(re.findall(r"(?<!\S)[-+~$]?\d[\d.,%x]*(?!\S)", answer.stdout))

    assert numbers("40") == numbers("200")


def test_a_table_is_rather_wider_than_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    show(
        [rows(["plan", "a", "b", "c"], [["a name of words", "1,234,567", "2.345e-06", "99.9%"]], right=(1, 2, 3))]
    )
    assert {"1,234,567", "2.345e-06", "99.9%"} <= set(capsys.readouterr().out.split())
