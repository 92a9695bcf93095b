"""Whole plans through a binary, alone and side by side.

The binary is fake where no real one can be (strata never builds or ships ASTRA-sim): it counts by the rules in
`fake_astra.py`, so these tests show that strata asks and reads rightly, not that ASTRA-sim agrees. The last one
runs the user's own where STRATA_ASTRA_SIM names one.
"""

from __future__ import annotations

import csv
import os
import tempfile

import pytest

from strata.errors import MissingPart, StrataError
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import AstraBackend, Binaries, find
from strata.simulate.astra.lower import Aggregation, Refused
from strata.simulate.astra.referee import compare, ranks_csv, simulate_astra
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.simulate.astra.fake_astra import NAMES, fake, script
from tests.support.builders import domain, fleet, job, link

DOMAINS = [domain(name, 16) for name in "abc"]
MODEL = StepModel(fleet(*DOMAINS), job())


def chain(names, *, copies=1, microbatches=4, forwards_first=False):
    count = len(names)
    cuts = [10 * i // count for i in range(count + 1)]
    depth = microbatches if forwards_first else 0
    stages = tuple(
        Stage(name, cuts[i], cuts[i + 1] - cuts[i], 2, depth + count - 1 - i) for i, name in enumerate(names)
    )
    return Pipeline(stages, copies, microbatches)


def plan(*pipelines):
    return TrainingPlan(pipelines, 2)


@pytest.fixture
def binaries(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield Binaries(**{kind: fake(tmp_path / "bin", kind) for kind in NAMES})
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.fixture
def environment(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def ask(shape, binaries, environment, *, model=MODEL, **more):
    return simulate_astra(model, shape, binaries=binaries, environment=environment, **more)


@pytest.mark.parametrize(
    ("shape", "tolerance"),
    [
        pytest.param(plan(chain("a")), 1e-6, id="one-rank"),
        pytest.param(plan(chain("a", copies=4)), 1e-6, id="copies"),
        pytest.param(plan(chain("aaaa")), 1e-4, id="pipeline-in-a-domain"),
        pytest.param(plan(chain("aaaa", copies=2)), 1e-4, id="pipeline-with-copies"),
        pytest.param(plan(*(chain(name, copies=2) for name in "abc")), 2e-3, id="data-parallel-domains"),
        pytest.param(plan(chain("ab", microbatches=1)), 1e-4, id="one-microbatch-over-the-wan"),
    ],
)
def test_where_no_message_waits_for_a_slot_it_is_the_analytic_step(shape, tolerance, binaries, environment):
    expected = MODEL.reports([shape])[0].step_time_s
    result = ask(shape, binaries, environment)
    assert result.step_s == pytest.approx(expected, rel=tolerance)
    assert result.step_s == max(result.finish_s)
    assert len(result.ranks) == sum(len(item.stages) * item.replicas for item in shape.pipelines)


def test_a_slot_held_until_delivery_makes_gpipe_over_a_wan_slower_than_the_analytic_step(binaries, environment):
    # Two stages that compute in microseconds: every microbatch waits for the delivery of the one before.
    fast = StepModel(fleet(*DOMAINS), job(job().layers, flops_efficiency=1e5))
    shape = plan(chain("ab", microbatches=8, forwards_first=True))
    ours = fast.reports([shape])[0].step_time_s
    theirs = ask(shape, binaries, environment, model=fast).step_s
    wire = fast.times(shape, shape.pipelines[0]).there[0]
    assert theirs - ours == pytest.approx(2 * 7 * wire.latency_s, rel=0.01)


def test_exposed_time_is_what_a_rank_does_not_compute(binaries, environment):
    shape = plan(chain("ab", microbatches=1))
    times = MODEL.times(shape, shape.pipelines[0])
    result = ask(shape, binaries, environment)
    for s, (finish, bare) in enumerate(zip(result.finish_s, result.exposed_s, strict=True)):
        work = times.forward_s[s] + times.backward_s[s] + times.update_s
        assert finish - bare == pytest.approx(work, abs=2e-6)


def test_the_answer_as_data_has_the_words_of_a_step_report(binaries, environment):
    result = ask(plan(chain("ab")), binaries, environment)
    data = result.to_dict()
    assert data["backend"] == "astra-aware"
    assert data["step_time_s"] == result.step_s
    assert [item["name"] for item in data["ranks"]] == list(result.ranks)
    assert result.trust is MODEL.reports([plan(chain("ab"))])[0].trust


def test_an_old_binary_says_nothing_of_exposed_time(tmp_path, binaries, environment):
    old = Binaries(aware=fake(tmp_path / "old", "aware", "old"))
    assert ask(plan(chain("ab")), old, environment).exposed_s == (None, None)


@pytest.mark.parametrize("mode", ["wrong", "missing", "fpe"])
def test_a_binary_that_fails_the_self_check_is_never_asked(tmp_path, binaries, environment, mode):
    bad = Binaries(aware=fake(tmp_path / "bad", "aware", mode))
    with pytest.raises(StrataError, match="does not pass the self-check"):
        ask(plan(chain("ab")), bad, environment)


def test_without_a_binary_it_says_how_to_get_one(environment):
    with pytest.raises(MissingPart, match="no ASTRA-sim binary of the aware backend"):
        ask(plan(chain("ab")), Binaries(), environment)


def test_a_refusal_comes_before_the_search_for_a_binary(environment):
    with pytest.raises(Refused):
        ask(plan(chain("aba")), Binaries(), environment)


def test_backends_stand_side_by_side_with_their_files(tmp_path, binaries, environment):
    found = compare(MODEL, plan(chain("ab")), binaries=binaries, environment=environment, keep=tmp_path / "logs")
    assert [row.backend for row in found] == [AstraBackend.UNAWARE, AstraBackend.AWARE]
    assert found[0].result.step_s == found[1].result.step_s
    for row in found:
        folder = tmp_path / "logs" / row.backend
        assert "sys[1] finished" in (folder / "stdout.log").read_text()
        assert (folder / "trace.1.et").stat().st_size > 0
    lines = list(csv.DictReader(ranks_csv([row.result for row in found]).splitlines()))
    assert [line["backend"] for line in lines] == ["unaware", "unaware", "aware", "aware"]
    assert float(lines[0]["finish_s"]) == found[0].result.finish_s[0]


def test_a_backend_that_cannot_answer_is_a_row_that_says_why(tmp_path, environment, binaries):
    hangs = script(tmp_path / "unaware", "#!/bin/sh\nexit 9\n")
    both = Binaries(aware=binaries.aware, unaware=hangs)
    unaware, aware = compare(MODEL, plan(chain("aab")), binaries=both, environment=environment)
    assert unaware.result is None
    assert "does not pass the self-check" in unaware.message
    assert [reason.token for reason in aware.reasons] == ["astra-one-dimension"]


def test_links_that_vary_are_refused_in_every_row(binaries, environment):
    found = compare(MODEL, plan(chain("ab")), binaries=binaries, environment=environment, links_vary=True)
    assert [[reason.token for reason in row.reasons] for row in found] == [["astra-links-vary"]] * 2


def test_unlike_links_are_said_in_every_row(binaries, environment):
    model = StepModel(fleet(*DOMAINS, links=[*link("a", "b", 5, 30), *link("b", "c", 3, 50)]), job())
    mean = Aggregation.MEAN
    found = compare(model, plan(chain("abc")), binaries=binaries, environment=environment, aggregation=mean)
    assert all("are all taken as 4Gbps, 40ms (mean)" in row.result.notes[0] for row in found)


@pytest.mark.skipif(not os.environ.get("STRATA_ASTRA_SIM"), reason="needs an ASTRA-sim binary: STRATA_ASTRA_SIM")
@pytest.mark.parametrize(
    "shape", [plan(chain("abc")), plan(chain("aab")), plan(*(chain(name, copies=2) for name in "abc"))]
)
def test_the_users_binary_agrees_with_the_fake(shape, binaries, environment):
    real = ask(shape, find(os.environ), environment)
    assert real.finish_s == pytest.approx(ask(shape, binaries, environment).finish_s, rel=1e-6)
