"""README, CHANGELOG and the hand-written pages: what they name is there, and what they show works."""

import re
import shlex

import click
import pytest

from strata.cli.main import cli
from strata.files import read_document
from strata.fleet.schema import load_fleet
from strata.training.plan.layout import load_layout
from strata.workload.schema import load_job
from strata.workload.serving_schema import load_serving_job
from tests import ROOT

ROOT = ROOT
ROOMS = ROOT / "src" / "strata"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
EXAMPLES = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "files.md").read_text(encoding="utf-8"), re.DOTALL)


def packages_and_modules():
    folders = {path.parent for path in ROOMS.rglob("__init__.py")} - {ROOMS}
    modules = {path for path in ROOMS.glob("*.py") if not path.name.startswith("__")}
    return {f"{folder.relative_to(ROOT)}/" for folder in folders} | {str(m.relative_to(ROOT)) for m in modules}


def test_the_map_of_rooms_is_the_tree():
    shown = re.findall(r"^\| `(src/strata/[^`]*)` \| \S", README, re.MULTILINE)
    assert len(shown) == len(set(shown))
    assert set(shown) == packages_and_modules()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_tells_nobody_to_use_a_path_of_one_machine(page):
    assert not re.search(r"/work/|/home/|\.\./shared", page.read_text(encoding="utf-8"))


def commands_shown(text):
    """Yield the words of every `strata ...` in code, up to a comment, a pipe or the next command."""
    for block, inline in re.findall(r"```(?:console)?\n(.*?)```|`(strata [^`]+)`", text, re.DOTALL):
        for line in re.findall(r"(?:^|\$ )strata ([a-z][^#&|\n]*)", block or inline, re.MULTILINE):
            words = shlex.split(line)
            # What is behind -- is another program's.
            yield words[: words.index("--")] if "--" in words else words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_shown_exist_with_their_options(page):
    shown = list(commands_shown(page.read_text(encoding="utf-8")))
    assert shown or "README" not in page.name or page.parent.name == "decisions"
    for words in shown:
        command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words[0])
            assert found is not None, words
            command, words = found, words[1:]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert used <= known | {"-h", "--help"}, (command.name, used - known)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: re.search(r"name: (\S+)", text)[1])
def test_the_example_files_on_the_page_are_read(text, tmp_path):
    path = tmp_path / "example.yaml"
    path.write_text(text, encoding="utf-8")
    kind = read_document(path).data["kind"]
    loaders = {"Fleet": load_fleet, "TrainingJob": load_job, "ServingJob": load_serving_job}
    read = {**loaders, "TrainingLayout": load_layout}[kind](path)
    assert read.name == re.search(r"^name: (\S+)", text, re.MULTILINE)[1]
