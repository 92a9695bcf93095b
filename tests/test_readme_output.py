"""README and tutorials: what they show below a command is what it prints; `[...]` stands for anything."""

from __future__ import annotations

import gzip
import re
import shlex
import time

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.evaluation.fault_injection.scenarios import InjectedFault, scenario
from strata.training.plan.baselines import nsga2
from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIALS = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs/tutorials").glob("*.md")))
DEMO = re.search(r"<!-- demo output -->\n```\n(.*?)```", README, re.DOTALL)[1]
LIVE = re.search(r"<!-- live demo output -->\n```\n(.*?)```", README, re.DOTALL)[1]
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
ANSWERED = [
    row
    for page in (README, CHINESE)
    for row in re.findall(r"^\| [^|]* \| `strata ([^`]*)` \| (.*) \|$", page, re.MULTILINE)
    if not row[0].startswith("run ")  # needs a GPU
]
"""Commands of the first table of both pages, and their answers in short."""
SHOWN = [
    shown
    for block in re.findall(r"^```\n(\$ .*?)^```", TUTORIALS, re.DOTALL | re.MULTILINE)
    for shown in re.findall(r"^\$ strata ([^\n]*)\n(.*?)(?=^\$ |\Z)", block, re.DOTALL | re.MULTILINE)
    # Speeds are of one machine, Sailor's cases and tenants of a device are not here.
    if not shown[0].startswith(("bench ", "run ", "slices"))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that has the examples, and the files that tutorials have a reader write."""
    folder = tmp_path_factory.mktemp("readme")
    for name, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", TUTORIALS, re.DOTALL | re.MULTILINE):
        (folder / name).write_text(text)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture(scope="module")
def answers():
    """What each command printed: both pages, and several tutorials, have the same."""
    return {}


@pytest.fixture
def printed(folder, answers, monkeypatch):
    """Return a function that runs a command as README has it: 80 columns, without pymoo."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(nsga2, "available", lambda: False)
    # Plans have half a minute. Here of a processor, and of a fast one: what is shown took a third of it, and a
    # processor shared with a busy neighbour takes thrice as long for the same work.
    monkeypatch.setattr(time, "perf_counter", lambda: time.process_time() / 10)

    def run(command: str) -> str:
        if command not in answers:
            answer = CliRunner().invoke(cli, shlex.split(command))
            assert answer.exit_code == 0, answer.output
            answers[command] = _words(answer.stdout)
        return answers[command]

    return run


def _words(text: str) -> str:
    """Return the words, apart from how long the planner searched."""
    return re.sub(r"evaluated in [\d.]+m?s", "evaluated in a moment", " ".join(text.split()))


@pytest.mark.long("the whole demo")
@pytest.mark.xdist_group("readme")
def test_the_demo_prints_what_is_shown(printed):
    assert _words(DEMO) in printed("demo")


@pytest.mark.long("plans a large model")
@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize(("command", "answer"), ANSWERED)
def test_figures_of_the_first_table_are_those_that_commands_print(printed, command, answer):
    figures = re.findall(r"\d[\d.]*\d+k?|\d+", re.sub(r"`[^`]*`", "", answer))
    shown = printed(command)
    assert [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}", shown)] == []


@pytest.mark.long("trains on this machine for most of a minute")
def test_the_live_demo_prints_what_is_shown(printed):
    shown, now = LIVE.splitlines(), printed("demo --live")
    assert _words(" ".join(shown[:3])) in now  # what it is
    pattern = (
        r".*submitted: 30 .* runs as pp .* goes bad: a tenth of its rate is left .* saved after step \d+, to be "
    )
    assert re.match(f"{pattern}moved: .* goes on from step .* trains again, .* done: 30 steps", now)
    assert re.match(f"{pattern}moved: .* goes on from step .* trains again, .* done: 30 steps", _words(LIVE))
    assert _words(shown[-5]) in now  # every step once, the losses to the digits shown


@pytest.mark.long("README's commands, planning what they plan")
@pytest.mark.xdist_group("readme")
@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[" ".join(shlex.split(c)[:3]) for c, _ in SHOWN])
def test_a_command_prints_what_is_shown_below_it(command, output, printed, folder):
    if "out/" in command and not (folder / "out").exists():
        printed("demo")
    pattern = ".*".join(re.escape(part) for part in _words(output).split("[...]"))
    now = printed(command)
    assert re.fullmatch(pattern, now, re.DOTALL), f"README shows\n{_words(output)}\nand this is printed:\n{now}"


def test_the_example_trace_is_of_the_simulated_kernel():
    _, text = scenario(InjectedFault.PINNED_HOG, seed=1)
    assert gzip.decompress((ROOT / "examples/host/trace.txt.gz").read_bytes()) == text
