"""Help with examples that can be typed, completion, man pages, and errors as JSON."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from strata.cli.main import cli, run
from tests.test_imports import imported_by

ROOT = Path(__file__).parents[2]


def leaves(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from leaves(below, click.Context(below, info_name=name, parent=context))
    else:
        yield context.command_path, command


STRATA = click.Context(cli, info_name="strata", **cli.context_settings)
COMMANDS = dict(leaves(cli, STRATA))


def examples(command: click.Command) -> list[str]:
    lines = [line.strip() for line in (command.help or "").splitlines()]
    return [part.strip() for line in lines if line.startswith("strata ") for part in line.split("&&")]


@pytest.mark.parametrize("path", COMMANDS)
def test_help_has_an_example_that_the_command_takes(path):
    typed = examples(COMMANDS[path])
    assert any(line.startswith(path) for line in typed)
    for line in typed:
        words = shlex.split(line, comments=True)
        words = words[: next((i for i, word in enumerate(words) if word in ("|", ">", "&")), len(words))]
        name = max((known for known in COMMANDS if " ".join(words).startswith(known)), key=len, default=None)
        if name is None:  # a group that is a command itself
            continue
        # Below strata's own context: a command remembers what its help is called where it was asked first.
        COMMANDS[name].make_context(name, words[len(name.split()) :], parent=STRATA)


def completed(*words: str, incomplete: str = "") -> list[str]:
    shell = ShellComplete(cli, {}, "strata", "_STRATA_COMPLETE")
    return [item.value for item in shell.get_completions(list(words), incomplete) if item.type == "plain"]


def test_fleets_and_jobs_are_completed():
    assert completed("plan", "train") == ["aws10", "hub", "seed"]
    assert completed("plan", "train", "aws10", incomplete="llama") == ["llama-3.1-70b", "llama-3.1-8b"]
    assert completed("plan", "serve", "aws10", incomplete="serve-llama-3.1-4") == ["serve-llama-3.1-405b"]


def test_jobs_of_a_scheduler_are_completed_and_none_of_one_that_is_not_there(monkeypatch):
    monkeypatch.setenv("STRATA_SERVER", "http://127.0.0.1:1")
    assert completed("job") == []
    assert completed("drain") == []
    monkeypatch.setattr("strata.control.client.Client.jobs", lambda _: [{"name": "small"}, {"name": "large"}])
    assert completed("logs", incomplete="s") == ["small"]
    monkeypatch.setattr("strata.control.client.Client.domains", lambda _: [{"name": "east"}, {"name": "west"}])
    assert completed("drain", incomplete="e") == ["east"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_names_our_command(shell, capsys):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_STRATA_COMPLETE" in script
    assert "strata" in script


def test_bash_takes_its_script():
    code = f"source <({sys.executable} -m strata completion bash) && complete -p strata"
    shown = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert "_strata_completion" in shown.stdout


def test_completing_loads_nothing_heavy_for_names_of_commands():
    code = "from tests.cli.test_comfort import completed; completed(incomplete='pl')"
    assert "numpy" not in imported_by(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}") - imported_by(
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tests.cli.test_comfort"
    )


def test_every_command_has_a_man_page(tmp_path):
    spec = importlib.util.spec_from_file_location("man", ROOT / "docs" / "man.py")
    man = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(man)
    man.main(tmp_path)
    names = {page.name for page in tmp_path.iterdir()}
    assert {f"{path.replace(' ', '-')}.1" for path in COMMANDS} < names
    assert ".SH OPTIONS" in (tmp_path / "strata-plan-train.1").read_text()


def error_of(capsys, *arguments: str) -> tuple[int, dict]:
    code = run(list(arguments))
    shown = capsys.readouterr()
    assert shown.out == ""
    return code, json.loads(shown.err)["error"]


def test_an_error_is_json_where_json_is_wanted(capsys, tmp_path):
    code, error = error_of(capsys, "plan", "train", "nowhere", "llama-3.1-8b", "-o", "json")
    assert (code, error["exit_code"], error["type"]) == (2, 2, "UsageError")
    assert "no bundled fleet" in error["message"]
    fleet = tmp_path / "fleet.yaml"
    head = "apiVersion: strata/v1alpha1\nkind: Fleet\nname: x\ndomains:\n"
    fleet.write_text(f"{head}  - {{name: a, accelerator: nope}}\n")
    code, error = error_of(capsys, "plan", "train", str(fleet), "llama-3.1-8b", "--output=json")
    assert (code, error["type"]) == (2, "BadFile")
    assert {(fault["path"], fault["line"]) for fault in error["faults"]} == {(str(fleet), 5)}


def test_misuse_is_json_too_and_what_others_are_given_is_theirs(capsys):
    code, error = error_of(capsys, "plan", "train", "-o", "json")
    assert (code, error["exit_code"]) == (2, 2)
    assert "Missing argument" in error["message"]
    assert run(["run", "--memory", "nonsense", "--", "true", "-o", "json"]) == 2
    assert not capsys.readouterr().err.startswith("{")
