from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from strata import __version__
from strata.cli import main
from strata.cli.lazy import LazyGroup
from strata.cli.main import COMMANDS, run
from strata.errors import (
    BadFile,
    Fault,
    GoalMissed,
    Infeasible,
    MissingPart,
    OutOfTime,
    StrataError,
    UsageError,
)

STRATA = [sys.executable, "-m", "strata"]


@pytest.fixture
def raising(monkeypatch):
    """Return a function that makes `strata probe` raise something."""

    def prepare(error: BaseException) -> None:
        @click.command()
        def probe() -> None:
            raise error

        monkeypatch.setattr(main, "probe", probe, raising=False)
        monkeypatch.setitem(COMMANDS, "probe", ("strata.cli.main:probe", "Raise."))

    return prepare


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StrataError("no"), 1),
        (UsageError("no"), 2),
        (BadFile([Fault("f", "no")]), 2),
        (Infeasible("no"), 3),
        (GoalMissed("no"), 4),
        (MissingPart("no"), 5),
        (OutOfTime("no"), 6),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.exceptions.Exit(7), 7),
        (BrokenPipeError(), 0),
    ],
)
def test_each_error_has_its_exit_code(raising, monkeypatch, error, code):
    raising(error)
    monkeypatch.setattr(main.os, "dup2", lambda *_: None)  # a broken pipe would silence pytest's own stdout
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    assert run(["probe"]) == code


def test_an_error_is_told_on_stderr_with_its_one_try(raising, capsys):
    raising(UsageError("400gbps has no unit", hint="write 400Gbps"))
    assert run(["probe"]) == 2
    assert capsys.readouterr() == ("", "error: 400gbps has no unit\ntry: write 400Gbps\n")


def test_every_fault_of_a_bad_file_is_its_own_line(raising, capsys):
    raising(BadFile([Fault("f", "first", 1, 2), Fault("f", "second", 3, 4)]))
    run(["probe"])
    assert capsys.readouterr().err == "error: f:1:2: first\nerror: f:3:4: second\n"


def test_ctrl_c_says_so_in_one_word(raising, capsys):
    raising(KeyboardInterrupt())
    assert run(["probe"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_bug_of_ours_is_not_dressed_up_as_a_user_error(raising):
    raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(["probe"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chek"], "No such command 'chek'. Did you mean 'check'?"),
        (["bench", "trainin"], "No such command 'trainin'. Did you mean 'training'?"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["lint"], "Missing argument 'FILE...'"),
        (["check", "-o", "xml"], "'xml' is not one of"),
        (["--nope"], "No such option"),
    ],
)
def test_a_wrong_command_line_exits_2_and_says_what_was_meant(arguments, says, capsys):
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


def test_the_version_is_told(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"strata, version {__version__}\n"


def test_help_lists_every_command_in_the_order_of_a_first_walk(capsys):
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out.split("Commands:")[1].splitlines()[1:]
    assert [line.split()[0] for line in listed] == list(COMMANDS)


def test_the_tables_of_groups_say_in_one_sentence_what_a_command_does():
    for _, text in COMMANDS.values():
        assert text[0].isupper()
        assert text.endswith(".")
        assert len(text) < 66


def test_a_group_imports_only_the_command_that_is_used():
    group = LazyGroup("group", table={"here": ("click:Command", ""), "broken": ("no_such_module:x", "")})
    context = click.Context(group)
    assert group.list_commands(context) == ["here", "broken"]
    assert group.get_command(context, "here") is click.Command


@pytest.mark.parametrize("arguments", [["--help"], ["schema", "Fleet"], ["check"], ["check", "-o", "json"]])
def test_a_reader_that_leaves_early_is_no_error(arguments):
    with subprocess.Popen([*STRATA, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_word_is_completed_for_the_shell():
    environment = {**os.environ, "_STRATA_COMPLETE": "bash_complete", "COMP_WORDS": "strata ch", "COMP_CWORD": "1"}
    shown = subprocess.run(STRATA, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout == "plain,check\n"


def test_a_terminal_of_few_letters_gets_the_others_escaped(tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_text(
        "trainer-\u00e4 7/7 [000] 1.000000000: sched:sched_switch: prev_comm=trainer-\u00e4 "
        "prev_pid=7 prev_prio=120 prev_state=R ==> next_comm=hog next_pid=8 next_prio=120\n"
        "hog 8/8 [000] 1.500000000: sched:sched_switch: prev_comm=hog prev_pid=8 prev_prio=120 prev_state=R ==> "
        "next_comm=trainer-\u00e4 next_pid=7 next_prio=120\n"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run([*STRATA, "host", "report", trace], env=environment, capture_output=True)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"trainer-\\xe4" in shown.stdout
