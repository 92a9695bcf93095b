"""What is acknowledged is kept, whatever kills whom; what is not ours is left alone."""

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from strata.control import store as module
from strata.control.jobfile import job_of, read_job
from strata.control.state import (
    Attempt,
    Cancelled,
    Drained,
    Job,
    JobPhase,
    LinkEstimate,
    Part,
    PartPhase,
    Submitted,
)
from strata.control.store import Kept, Store
from strata.errors import BadFile, UsageError
from tests.support import builders
from tests.training.program.launched import CHAIN

FLEET = builders.fleet(*(builders.domain(name) for name in "abc"))
JOB = """
apiVersion: strata/v1alpha1
kind: TrainingJob
name: {name}
model: llama-3.1-8b
train: {{global_batch: 64, sequence: 2048}}
run: {{command: [python, train.py], steps: 100, resume: true}}
"""


@pytest.fixture
def piece(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.format(name="one"))
    return read_job(tmp_path / "job.yaml")


def load(store):
    return store.load(FLEET, runs_on=("a", "b"), now_s=1.0)


def test_a_submit_is_an_observation_until_a_step_has_dealt_with_it(tmp_path, piece):
    with Store(tmp_path / "s.db") as store:
        store.submit(*piece)
    with Store(tmp_path / "s.db") as store:
        newest, inbox = store.inbox()
        assert [type(item) for item in inbox] == [Submitted]
        before = load(store)
        after = replace(before, jobs={"one": Job(inbox[0].spec)})
        store.save(before, after, dealt_with=newest)
        assert store.inbox() == (0, ())
    with Store(tmp_path / "s.db") as store:
        assert load(store).jobs["one"].spec.steps == 100


def test_jobs_attempts_drains_and_links_read_back_as_they_were(tmp_path, piece):
    attempt = Attempt("one-1", "one", 1, CHAIN, 2.0, 0, {"a": Part(PartPhase.RUNNING), "b": Part()}, moved_s=9.5)
    link = LinkEstimate(0.5, 0.1, recent=((1.0, 0.5),))
    with Store(tmp_path / "s.db") as store:
        store.submit(*piece)
        before = load(store)
        job = Job(store.inbox()[1][0].spec, JobPhase.RUNNING, attempts=1, weights_plan=CHAIN)
        domains = {**before.domains, "b": replace(before.domains["b"], is_drained=True)}
        after = replace(
            before, jobs={"one": job}, attempts={"one-1": attempt}, domains=domains, links={("a", "b"): link}
        )
        store.save(before, after, dealt_with=1, decisions=[Kept(5.0, "one", {"choice": "x"})])
    with Store(tmp_path / "s.db") as store:
        again = load(store)
        assert again.attempts == after.attempts
        assert again.links == after.links
        assert again.domains == after.domains
        assert replace(again.jobs["one"], spec=job.spec) == job
        assert store.decisions("one") == [Kept(5.0, "one", {"choice": "x"})]
        assert store.attempts("one") == [attempt]


def test_a_job_that_is_over_is_kept_and_not_loaded(tmp_path, piece):
    attempt = Attempt("one-1", "one", 1, CHAIN, 2.0, 0, {"a": Part(PartPhase.ENDED), "b": Part(PartPhase.ENDED)})
    with Store(tmp_path / "s.db") as store:
        store.submit(*piece)
        before = load(store)
        job = Job(store.inbox()[1][0].spec, JobPhase.DONE, steps_done=100, attempts=1)
        after = replace(before, jobs={"one": job}, attempts={"one-1": attempt})
        store.save(before, after, dealt_with=1)
    with Store(tmp_path / "s.db") as store:
        again = load(store)
        assert (again.jobs, again.attempts) == ({}, {})
        (kept,) = store.jobs("one")
        assert (kept.state["phase"], kept.state["steps_done"], kept.run["steps"]) == ("done", 100, 100)
        assert (store.jobs("other"), store.attempts("one")) == ([], [attempt])


def test_cancels_and_drains_are_kept_in_order(tmp_path):
    with Store(tmp_path / "s.db") as store:
        store.request("cancel", "one")
        store.request("drain", "a")
        store.request("undrain", "a")
        assert store.inbox() == (3, (Cancelled("one"), Drained("a"), Drained("a", is_drained=False)))


def test_two_jobs_of_one_name_are_refused(tmp_path, piece):
    with Store(tmp_path / "s.db") as store:
        store.submit(*piece)
        with pytest.raises(UsageError, match="there is a job 'one' already"):
            store.submit(*piece)


def test_a_second_scheduler_on_the_store_is_refused(tmp_path):
    with (
        Store(tmp_path / "s.db"),
        pytest.raises(UsageError, match="another scheduler runs"),
        Store(tmp_path / "s.db"),
    ):
        pass
    with Store(tmp_path / "s.db"):
        pass


def test_a_store_of_a_newer_strata_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / "s.db") as rows:
        rows.execute(f"PRAGMA user_version={len(module.MIGRATIONS) + 1}")
    with pytest.raises(UsageError, match="newer strata"), Store(tmp_path / "s.db"):
        pass


def test_a_link_that_an_older_strata_kept_is_read(tmp_path, piece):
    link = LinkEstimate(0.5, 0.1, recent=((1.0, 0.5),))
    with Store(tmp_path / "s.db") as store:
        before = load(store)
        store.save(before, replace(before, links={("a", "b"): link}), dealt_with=0)
    with sqlite3.connect(tmp_path / "s.db") as rows:
        rows.execute("UPDATE link SET body = json_set(body, '$.levels', json('[[1.0, 60.0, 1]]'))")
        rows.execute("PRAGMA user_version=8")
    with Store(tmp_path / "s.db") as store:
        assert load(store).links == {("a", "b"): link}


def test_a_job_that_says_not_how_it_is_run_cannot_be_submitted(tmp_path):
    text = JOB.format(name="x")
    (tmp_path / "job.yaml").write_text(text[: text.index("run:")])
    with pytest.raises(BadFile, match="`run:` is missing"):
        read_job(tmp_path / "job.yaml")


@pytest.mark.parametrize("sent", [{}, {"document": []}, {"document": {}, "texts": {"other": ""}}])
def test_a_piece_that_is_none_is_bad_input(sent):
    with pytest.raises(UsageError):
        job_of(sent, 0.0)


def test_a_job_that_was_sent_names_no_files_of_the_receiver(piece):
    document = {**piece[1]["document"], "model": "/etc/model"}
    with pytest.raises(UsageError, match="not among the texts"):
        job_of({"document": document, "texts": {}}, 0.0)


WRITER = """
import sys, pathlib
from strata.control.jobfile import job_of
from strata.control.store import Store
from tests.control.test_store import JOB
from strata.files import read_document
import yaml
with Store(sys.argv[1]) as store:
    for n in range(int(sys.argv[2]), 10**9):
        document = yaml.safe_load(JOB.format(name=f"job-{n}"))
        piece = {"document": document, "texts": {}}
        store.submit(job_of(piece, 0.0), piece)
        print(n, flush=True)
"""


@pytest.mark.long("kills a writer again and again")
def test_every_submit_that_was_acknowledged_survives_kill_9(tmp_path):
    done = 0
    for round_ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "s.db"), str(done)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."},
        )  # fmt: skip
        lines = [writer.stdout.readline() for _ in range(3 + round_)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.communicate()[0].splitlines()
        acknowledged = max(int(line) for line in lines if line.strip())
        with Store(tmp_path / "s.db") as store:
            names = [item.spec.name for item in store.inbox()[1]]
        assert names[: acknowledged + 1] == [f"job-{n}" for n in range(acknowledged + 1)]
        assert len(names) <= acknowledged + 2
        done = len(names)
