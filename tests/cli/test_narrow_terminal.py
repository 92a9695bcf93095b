"""At 40 columns texts are folded, and numbers stay whole."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from strata.cli.main import cli
from strata.cli.output import show
from strata.tables import rows
from tests import ROOT


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


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (["gpus"], "name"), (["model"], "name"), (["fleet", "show", "seed"], "domain"),
        (["kube", "acu", "--snapshot", str(ROOT / "examples" / "cluster" / "snapshot.json")], "domain"),
    ],
)  # fmt: skip
def test_no_word_of_a_header_is_split_and_no_column_is_left_out(command, first):
    wide, narrow = (
        CliRunner().invoke(cli, command, env={"COLUMNS": columns}).stdout.splitlines() for columns in ("200", "40")
    )
    header = next(line for line in wide if line.startswith(f"{first} "))
    last = next(i for i, line in enumerate(narrow) if line.startswith(f"{first} "))
    # Of two words one may stand in the line above.
    assert Counter(header.split()) <= Counter([*narrow[last - 1].split(), *narrow[last].split()])


def test_a_table_is_rather_wider_than_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    show(
        [rows(["plan", "a", "b", "c"], [["a name of words", "1,234,567", "2.345e-06", "99.9%"]], right=(1, 2, 3))]
    )
    assert {"1,234,567", "2.345e-06", "99.9%"} <= set(capsys.readouterr().out.split())


def test_a_column_that_can_be_folded_is_before_the_table_is_wider_than_the_terminal(monkeypatch, capsys):
    """The stages of an interleaved plan on eight chunks each: 83 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    cells = ["北京2", "H800-SXM5-80GB", "0-1, 5, 9, 13, 17, 21, 25, 29-30", "2x tp4 cp4", "2.72ms", "4.76ms"]
    headers = ["stage in", "device", "layers", "copies", "fwd", "bwd", "memory"]
    show([rows(headers, [[*cells, "5.64GiB/73.6GiB"]], right=range(4, 7))])
    out = capsys.readouterr().out
    assert max(map(cell_len, out.splitlines())) <= 80
    assert {"H800-SXM5-80GB", "2x", "tp4", "cp4", "5.64GiB/73.6GiB"} <= set(out.split())
