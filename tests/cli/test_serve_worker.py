import importlib

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run

MUST = ["serve", "worker", "--gateway", "http://127.0.0.1:1", "--id", "a"]


@pytest.mark.parametrize("absent", ["torch", "starlette", "uvicorn", "httpx"])
def test_what_is_not_installed_is_named_with_the_extra_that_brings_it(monkeypatch, capsys, absent):
    present = importlib.import_module

    def import_module(name, *rest):
        if name == absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        # What comes before the absent one in the command's list is taken as there: torch is in no plain test.
        return None if name == "torch" else present(name, *rest)

    monkeypatch.setattr(importlib, "import_module", import_module)
    assert run(MUST) == 5
    extra = "train" if absent == "torch" else "serve"
    assert f"try: pip install -e '.[{extra}]'" in capsys.readouterr().err


@pytest.mark.parametrize("bind", ["8000", "127.0.0.1", ":8000", "127.0.0.1:x", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(bind, capsys):
    assert run([*MUST, "--bind", bind]) == 2
    assert "try: --bind 127.0.0.1:0" in capsys.readouterr().err


@pytest.mark.parametrize("gateway", ["nope", "127.0.0.1:8000", "ftp://127.0.0.1"])
def test_a_gateway_that_is_no_url_is_refused(gateway, capsys):
    assert run(["serve", "worker", "--gateway", gateway, "--id", "a"]) == 2
    assert "try: --gateway http://127.0.0.1:8000" in capsys.readouterr().err


@pytest.mark.parametrize("bind", ["0.0.0.0:8000", "[::]:8000"])
def test_an_address_that_others_cannot_reach_is_refused(bind, capsys):
    assert run([*MUST, "--bind", bind]) == 2
    assert "other nodes cannot reach this address" in capsys.readouterr().err


@pytest.mark.parametrize("memory", ["0", "-1GB", "much"])
def test_what_is_no_memory_is_refused(memory):
    assert run([*MUST, "--memory", memory]) == 2


def test_a_hidden_size_that_heads_do_not_divide_is_refused(capsys):
    assert run([*MUST, "--hidden", "130"]) == 2
    assert "a hidden size of 130 is not divisible by 4 heads" in capsys.readouterr().err


def test_a_worker_needs_a_gateway_and_a_name():
    result = CliRunner().invoke(cli, ["serve", "worker"])
    assert result.exit_code == 2
    assert "--gateway" in result.output
