from __future__ import annotations

import importlib
import importlib.util
import operator
import re
import subprocess
import sys

import click
import pytest

from strata.cli.kinds import KINDS
from strata.cli.main import cli
from strata.errors import StrataError
from strata.reasons import REASONS
from tests import ROOT

GENERATOR = ROOT / "docs" / "generate.py"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def every_command(command=cli, path=("strata",)):
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from every_command(command.get_command(context, name), (*path, name))


def test_the_page_of_reasons_has_every_token_with_its_remedy(generate):
    page = generate.reasons()
    for token, meaning in REASONS.items():
        assert f"## `{token}`" in page
        assert meaning.remedy in page


@pytest.mark.long("generates a page from all sources")
def test_the_page_of_exit_codes_has_every_error_that_a_user_may_see(generate):
    page = generate.exit_codes()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")][2:]
    assert list(dict.fromkeys(rows)) == ["0", "1", "2", "3", "4", "5", "6", "126", "127", "130"]
    for kind in every_error_imported():
        assert f"| {kind.exit_code} | `{kind.__name__}` | {kind.__doc__.partition(chr(10))[0]}" in page


def every_error_imported():

    waiting = [StrataError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.startswith("strata."):
            yield kind
        waiting += kind.__subclasses__()


def test_the_page_of_files_has_every_kind_and_every_link_leads_somewhere(generate):
    page = generate.schemas()
    for kind in KINDS:
        assert f"\n## {kind}\n" in page
    headings = {line.removeprefix("### ").lower() for line in page.splitlines() if line.startswith("### ")}
    links = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert links
    assert links <= headings
    assert "| **bandwidth** | bandwidth: 400Gbps (bits) or 50GB/s (bytes) |  |" in page


def test_the_page_of_commands_shows_what_help_shows(generate):
    page = generate.commands()
    for path, _ in every_command():
        assert f"\n## {' '.join(path)}\n" in page
        assert f"\nUsage: {' '.join(path)} " in page


def test_every_command_and_option_says_what_it_is_for():
    for path, command in every_command():
        assert command.help, path
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, (path, option.name)


def test_a_list_of_commands_cuts_no_description_short():
    for path, command in every_command():
        if isinstance(command, click.Group):
            shown = command.get_help(click.Context(command, info_name=path[-1], terminal_width=80))
            assert "..." not in shown.partition("\nCommands:\n")[2], path


def test_a_stale_or_missing_page_is_named_and_a_fresh_one_is_not(generate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        generate, "PAGES", {"a.md": lambda: "# A\n", "b.md": lambda: "# B\n", "c.md": lambda: "# C\n"}
    )
    assert generate.main([], tmp_path) == 0
    assert generate.main(["--check"], tmp_path) == 0
    (tmp_path / "a.md").write_text("# A, edited\n")
    (tmp_path / "b.md").unlink()
    capsys.readouterr()
    assert generate.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == "stale: docs/a.md, docs/b.md\ntry: make docs\n"
    assert (tmp_path / "a.md").read_text() == "# A, edited\n"


@pytest.mark.long("generates every page; `make check` does, too")
def test_the_pages_in_the_repository_are_fresh():
    # In a process of its own: click keeps the help option of the first context that a command meets, and other
    # tests make contexts without our settings.
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
NOT_OURS = {
    "megatron/training/theoretical_memory_usage.py",
    "training/hi_ppo/coordinator.py",  # said to be gone
}


def is_there(place):
    module, _, names = place.partition(":")
    try:
        operator.attrgetter(names)(importlib.import_module(f"strata.{module}"))
    except (ImportError, AttributeError):
        return False
    return True


def test_the_files_and_functions_that_pages_name_are_there():
    tops = (ROOT / top for top in ("src", "tests", "benchmarks", "docs", "tools"))
    files = [f"/{file.relative_to(ROOT)}" for top in tops for file in top.rglob("*.py")]
    text = "\n".join(page.read_text() for page in PAGES)
    paths = {*re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)+\.py)`", text)} - NOT_OURS
    assert {path for path in paths if not any(file.endswith(f"/{path}") for file in files)} == set()
    places = {*re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+:[A-Za-z_][\w.]*)`", text)}
    assert {place for place in places if not is_there(place)} == set()


def console_blocks(page):
    return re.findall(r"^```.*?^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", sorted(page.name for page in (ROOT / "docs/tutorials").glob("*.md")))
def test_a_tutorial_in_chinese_shows_the_same_commands_and_outputs(name):
    """Those of the English ones are run (test_readme_output.py)."""
    english, chinese = (ROOT / "docs/tutorials" / folder / name for folder in ("", "zh"))
    assert console_blocks(english)
    assert console_blocks(chinese) == console_blocks(english)
