"""The loop in virtual time: what policies keep of a job along a trace."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from strata.cli.main import run as strata
from strata.control.candidates import Candidates
from strata.control.choosing import choice
from strata.control.core import Scheduler
from strata.control.free import Room
from strata.control.measured import Measured
from strata.control.policies import PolicyName, choose_by
from strata.control.replay import ENDLESS, clairvoyant, replay_job, replay_jobs, run, trace_s
from strata.control.state import Attempt, DomainView, Job, JobSpec, Part, PartPhase, Snapshot
from strata.fleet.dynamics.regimes import outage
from strata.fleet.dynamics.replay import Replay
from strata.fleet.schema import load_fleet
from strata.simulate.analytic import StepModel
from strata.workload.pins import Pins
from strata.workload.schema import load_job

FLEET = load_fleet("seed")
JOB = load_job("llama-3.1-8b")
LINKS = len(FLEET.links)


@cache
def candidates() -> Candidates:
    return Candidates.of(FLEET, JOB)


def kept(factors, policy, plans=None):
    """Return the share of nominal tokens, and the switches, of a trace of one row every 300 s."""
    own = plans or candidates()
    trace = Replay(np.arange(len(factors)) * 300.0, np.asarray(factors, dtype=float))
    choose = clairvoyant(own, trace, interval_s=300.0) if policy == "clairvoyant" else choose_by(policy)
    duration_s = trace_s(trace, 300.0)
    scheduler = Scheduler(choose, lambda _fleet, _job: own)
    result = run(FLEET, [JobSpec("a", JOB, ENDLESS)], scheduler, trace=trace, end_s=duration_s)
    return result.trained["a"] / (own.nominal.max() * duration_s), result.switches


def noise(seed, rows=24):
    return 1 + np.random.default_rng(seed).uniform(-0.3, 0.3, (rows, LINKS))


@pytest.mark.long("replays traces under every rule")
@pytest.mark.parametrize("seed", [11])
def test_the_seeds_noise_wakes_nobody_and_costs_less_than_ten_points(seed):
    own, switches = kept(noise(seed), PolicyName.HI_PPO)
    never, _ = kept(noise(seed), PolicyName.NEVER)
    assert switches == 0
    assert own > 0.9
    assert own >= never - 0.002


def test_a_dip_is_left_and_come_back_from():
    factors = np.ones((40, LINKS))
    factors[8:24] = 0.1
    own, switches = kept(factors, PolicyName.HI_PPO)
    assert switches == 2
    assert own > kept(factors, PolicyName.NEVER)[0] + 0.1
    assert own >= kept(factors, PolicyName.HYSTERESIS)[0] - 0.01


def test_who_starts_on_slow_links_takes_what_is_fast_there():
    factors = np.full((12, LINKS), 0.15)
    assert kept(factors, PolicyName.HI_PPO) == kept(factors, PolicyName.NEVER)


@pytest.mark.long("replays a trace under every rule")
def test_where_weights_get_stuck_is_learnt_of_domains_that_are_cut_off():
    rng, process = np.random.default_rng(6), outage(up_s=14400, down_s=3600)
    domains, rows = process.reset(rng, (len(FLEET.domains),)), []
    for _ in range(60):
        up = dict(zip((domain.name for domain in FLEET.domains), process.factor(domains), strict=True))
        rows.append([min(up[source], up[dest]) for source, dest in FLEET.links])
        domains = process.step(domains, 300.0, rng)
    rules = PolicyName.NEVER, PolicyName.HYSTERESIS
    assert kept(rows, PolicyName.HI_PPO)[0] >= max(kept(rows, rule)[0] for rule in rules)
    # Where weights could always go back to a domain alone, nothing would be stuck.
    held = [plan for plan in candidates().plans if len(plan.domains) > 1 or plan.domains == ("West_DataCenter",)]
    few = candidates().of_plans(held)
    assert kept(rows, PolicyName.HI_PPO, few)[0] > max(kept(rows, rule, few)[0] for rule in rules)


def test_nobody_keeps_more_than_who_knows_the_trace():
    factors = np.where(np.random.default_rng(3).random((16, LINKS)) < 0.2, 0.1, 1.0)
    most = kept(factors, "clairvoyant")[0]
    assert all(kept(factors, policy)[0] <= most + 1e-9 for policy in PolicyName)


@pytest.mark.parametrize("seed", range(4))
def test_who_knows_the_trace_keeps_most_where_links_change_between_decisions(seed):
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.choice([7.0, 60.0, 150.0, 450.0, 1000.0], 8))
    trace = Replay(times_s, np.repeat(rng.choice([0.0, 1.0], (8, 1)), LINKS, axis=1))
    kept = {}
    for name in ("clairvoyant", *PolicyName):
        known = name == "clairvoyant"
        choose = clairvoyant(candidates(), trace, interval_s=300.0) if known else choose_by(PolicyName(name))
        scheduler, spec = Scheduler(choose, lambda _fleet, _job: candidates()), JobSpec("a", JOB, ENDLESS)
        kept[name] = run(FLEET, [spec], scheduler, trace=trace, end_s=times_s[0] + trace_s(trace, 300.0)).trained[
            "a"
        ]
    assert max(kept.values()) <= kept["clairvoyant"] * (1 + 1e-9)


def test_who_knows_the_trace_pays_a_switch_that_takes_several_decisions():
    factors = np.ones((120, LINKS))
    factors[20:] = 0.1
    trace = Replay(np.arange(120) * 30.0, factors)  # a restart alone takes two decisions
    steps = {}
    for name, choose in (
        ("never", choose_by(PolicyName.NEVER)),
        ("clairvoyant", clairvoyant(candidates(), trace, interval_s=30.0)),
    ):
        scheduler = Scheduler(choose, lambda _fleet, _job: candidates(), 30.0)
        result = run(FLEET, [JobSpec("a", JOB, ENDLESS)], scheduler, trace=trace, end_s=3600.0)
        steps[name] = result.trained["a"]
    assert steps["clairvoyant"] > 1.2 * steps["never"]


def test_links_that_stay_nominal_keep_all_but_what_caution_costs():
    assert kept(np.ones((12, LINKS)), PolicyName.NEVER) == (pytest.approx(1.0), 0)
    assert kept(np.ones((12, LINKS)), PolicyName.HI_PPO)[0] > 0.99


def test_an_outage_of_every_link_leaves_a_job_where_it_can_train():
    factors = np.ones((20, LINKS))
    factors[10:] = 0.0
    own, _ = kept(factors, PolicyName.HI_PPO)
    assert own >= kept(factors, PolicyName.NEVER)[0] - 0.01


def test_several_jobs_share_devices_and_all_end_with_every_step():
    specs = [JobSpec(name, JOB, 20, submitted_s=60.0 * i) for i, name in enumerate("abc")]
    scheduler = Scheduler(choose_by(PolicyName.EXACT), lambda _fleet, _job: candidates())
    result = run(FLEET, specs, scheduler, trace=None, end_s=1e6)
    assert {job.steps_done for job in result.jobs.values()} == {20}
    assert set(result.ends_s) == set("abc")
    assert result.end_s < 3 * 20 / candidates().nominal.min()


@pytest.mark.long("replays a trace under every rule")
def test_the_command_prints_the_rules_beside_the_policy(tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,East_DataCenter>West_DataCenter\n0,1\n300,0\n")
    assert strata(["replay", "seed", "opt-350m", "--links", str(trace), "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["policy", "kept", "switches", "decisions", "timeline", "rules"]
    assert list(data["rules"]) == ["never", "hysteresis", "exact", "clairvoyant"]
    assert data["decisions"] == 2
    assert list(data["timeline"][0]) == ["at_s", "plan", "step_time_s", "reason"]


@pytest.mark.long("replays a trace under every rule, three times")
def test_a_job_alone_keeps_to_the_devices_that_it_allows(tmp_path, capsys):
    """Plans on more or fewer devices were replayed, on which `strata up` never starts the job."""
    job, trace = tmp_path / "job.yaml", tmp_path / "trace.csv"
    trace.write_text("time_s,East_DataCenter>West_DataCenter\n0,1\n300,0\n")
    text = "apiVersion: strata/v1alpha1\nkind: TrainingJob\nname: one\nmodel: opt-350m\n"
    text += "train: {{global_batch: 16, sequence: 2048}}\nrun: {{command: [train], steps: 50, {}}}\n"
    asked = ["replay", "seed", str(job), "--links", str(trace)]
    job.write_text(text.format("max_devices: 4, resume: true"))
    assert strata([*asked, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["kept"] == data["rules"]["clairvoyant"]["kept"] == pytest.approx(1.0)
    assert data["timeline"][0]["plan"].startswith("single ")
    job.write_text(text.format("min_devices: 4000"))
    assert strata(asked) == 3
    assert "the job allows 4000" in capsys.readouterr().err
    job.write_text(text.format("min_devices: 1"))
    assert strata(asked) == 0
    assert "as if it could resume" in capsys.readouterr().out


def test_the_command_plays_several_jobs_together(tmp_path, capsys):
    job = "apiVersion: strata/v1alpha1\nkind: TrainingJob\nname: {}\nmodel: opt-350m\n"
    job += "train: {{global_batch: 16, sequence: 2048}}\nrun: {{command: [train], steps: 50}}\n"
    for name in "ab":
        (tmp_path / name).write_text(job.format(name))
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,East_DataCenter>West_DataCenter\n0,1\n3000,0.5\n")
    files = [str(tmp_path / name) for name in "ab"]
    assert strata(["replay", "seed", *files, "--links", str(trace), "-o", "json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert {name: (job["phase"], job["steps_done"]) for name, job in jobs.items()} == dict.fromkeys(
        "ab", ("done", 50)
    )
    assert all(job["timeline"][0]["plan"] for job in jobs.values())
    assert strata(["replay", "seed", *files, "--links", str(trace)]) == 0
    text = capsys.readouterr().out
    assert all(item["plan"] in text for job in jobs.values() for item in job["timeline"])
    assert strata(["replay", "seed", files[0], files[0], "--links", str(trace)]) == 2
    (tmp_path / "b").write_text(job.format("b").replace("steps: 50", "steps: 50, min_devices: 4000"))
    assert strata(["replay", "seed", *files, "--links", str(trace)]) == 0
    (text,) = capsys.readouterr().out.split("b can never run here:")[1:]
    assert "the job allows 4000" in text


def test_a_trace_in_milliseconds_is_refused(tmp_path, capsys):
    """It was replayed for days, without a word."""
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,East_DataCenter>West_DataCenter\n0,1\n600000000000,1\n")
    assert strata(["replay", "seed", "opt-350m", "--links", str(trace)]) == 2
    assert "try: time_s in seconds" in capsys.readouterr().err


def test_a_bad_trace_is_refused_with_all_its_faults(tmp_path, capsys):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,East>West\n0,1\n0,-1\n5,nan\n")
    assert strata(["replay", "seed", "opt-350m", "--links", str(trace)]) == 2
    faults = capsys.readouterr().err
    assert all(f"{trace}:{place}" in faults for place in ("1:8", "3:1", "3:3", "4:3"))


@pytest.mark.long("replays a trace under every rule")
@pytest.mark.parametrize("pins", [Pins(pipeline=4), Pins(tensor=2, pipeline=2)])
def test_what_a_job_fixes_every_candidate_keeps(pins):
    made = Candidates.of(FLEET, replace(JOB, pins=pins))
    assert made.plans
    assert all(plan.keeps(pins) for plan in made.plans)


def test_rates_worked_out_together_are_those_of_the_cost_model():
    states = np.random.default_rng(5).uniform(0.1, 1.3, (3, LINKS))
    made = Candidates(FLEET, JOB, candidates().plans)
    made.prepare([tuple(row) for row in states.tolist()])
    for row in states.tolist():
        reports = StepModel(made.fleet_at(row), JOB).reports(made.plans)
        assert made.rates(tuple(row)) == pytest.approx([1 / report.step_time_s for report in reports], rel=1e-12)


def test_a_link_that_another_job_uses_counts_half():
    made = candidates()
    across = next(plan for plan in made.plans if len(plan.domains) == 2)
    attempt = Attempt("a-1", "a", 1, across, 0.0, 0, {name: Part(PartPhase.RUNNING) for name in across.domains})
    jobs = {name: Job(JobSpec(name, JOB, 10)) for name in "ab"}
    views = {domain.name: DomainView(domain.name, 8, 0.0) for domain in FLEET.domains}
    choose = choose_by(PolicyName.EXACT)

    def step_s(attempts):
        state = Snapshot(FLEET, jobs, attempts, views)
        return choice(
            made, choose, state, jobs["b"], now_s=0.0, room=Room(dict.fromkeys(views, 8)), current=across,
            interval_s=300.0, measured=Measured(state, lambda _fleet, _spec: made),
        ).step_time_s  # fmt: skip

    alone, shared = step_s({}), step_s({"a-1": attempt})
    assert alone is not None
    assert shared is not None
    assert shared > alone


@pytest.mark.long("replays a trace under every rule")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_replay_says_how_far_it_is_all_along(jobs):
    """An interval of a millisecond took minutes behind a bar that had no end."""
    bars: dict[str, tuple[float | None, list[float]]] = {}

    @contextmanager
    def progress(label, *, total=None):
        bars[label] = total, []
        yield bars[label][1].append

    trace = Replay(np.arange(3) * 300.0, np.ones((3, LINKS)))
    asked = {"trace": trace, "policy": PolicyName.NEVER, "interval_s": 100.0, "progress": progress}
    if jobs == 1:
        replay_job(FLEET, JobSpec("a", JOB, ENDLESS), **asked)
        assert bars.pop("planning")[0] is None
        assert list(bars) == [f"replaying {rule}" for rule in ("never", "hysteresis", "exact", "clairvoyant")]
    else:
        replay_jobs(FLEET, [JobSpec(name, JOB, ENDLESS) for name in "ab"], **asked)
        assert list(bars) == ["replaying"]
    for total, shown in bars.values():
        assert total == 900.0
        assert shown[-1] == pytest.approx(total)
        assert len(shown) >= 9
