"""`strata bench pipelines`: what is printed, and what is refused; its figures are the machine's."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from strata.cli.main import run
from strata.errors import StrataError
from strata.evaluation.bench import pipelines
from strata.evaluation.bench.loops import finish

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


TOKENS = b'{"token":1}\n{"token":2}\n{"token":3}\n'
OVER, INTERRUPTED = TOKENS + b'{"finish":"length"}\n', TOKENS + b'{"error":"aborted"}\n'
GONE = b'{"error":"a: attempt 1 of r is not kept here"}\n'


def interrupted(monkeypatch, *answers):
    """Return what is measured where workers give these answers, one after the other, to what asks for tokens."""
    left = iter(answers)

    async def post(_workers, path, _message):
        if path == "/generate":
            answer = next(left)
            for i in range(0, len(answer), 12):  # a line, or a part of one
                yield answer[i : i + 12]

    monkeypatch.setattr(pipelines, "_post", post)
    load = pipelines.PipelineLoad(stages=2, requests=2, tokens=3, layers=2, hidden=8)
    return finish(pipelines._interrupted, SimpleNamespace(stages=[], cpu_s=0.0), load, is_kept=True)


def test_an_answer_that_was_over_before_it_was_interrupted_is_asked_for_again(monkeypatch):
    found = interrupted(monkeypatch, OVER, GONE, INTERRUPTED, TOKENS, OVER, GONE, INTERRUPTED, TOKENS)
    assert (found["goes_on_by"], found["tokens"]) == ("moving", 512)


def test_an_interrupted_answer_that_does_not_go_on_is_told_with_the_workers_words(monkeypatch):
    with pytest.raises(StrataError, match=r"did not go on: .*attempt 1 of r is not kept here"):
        interrupted(monkeypatch, INTERRUPTED, GONE)


def test_a_machine_on_which_nothing_can_be_interrupted_is_told_so(monkeypatch):
    with pytest.raises(StrataError, match="over before they can be interrupted"):
        interrupted(monkeypatch, *(OVER, GONE) * 2 * pipelines.LATE)
