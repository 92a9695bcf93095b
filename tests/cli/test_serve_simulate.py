"""`strata serve simulate`: what it answers with, what it refuses, and that nothing is lost on the way."""

import json

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run

JOB = """\
apiVersion: strata/v1alpha1
kind: ServingJob
name: chat
model: llama-3.1-8b
demand: {prompt: 300, output: 60, batch: 8, rate: 6/s}
goals: {ttft: 4s, tpot: 100ms}
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02d}.5,{300 + second},20\n" for second in range(30)
)


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def answer(*arguments):
    found = CliRunner().invoke(cli, ["serve", "simulate", *arguments, "-o", "json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_the_jobs_own_rate_is_played_and_the_figures_add_up(job):
    found = answer("aws10", job, "--seconds", "20s")
    assert found["arrivals"]["rate_per_s"] == 6.0
    counts = found["requests"]
    assert counts["offered"] == counts["served"] + counts["rejected"] + counts["cancelled"] + counts["unfinished"]
    assert counts["served"] > 60
    assert found["goals"]["met_share"] == 1.0
    assert found["ttft_s"]["p50"]["estimate"] < found["latency_s"]["p50"]["estimate"]
    assert found["kpis"]["trust"] == found["trust"] == "assumed"
    assert found["window_s"] == [2.0, 20.0]


def test_a_batch_that_memory_has_no_room_for_is_said_to_be_cut(job, tmp_path):
    fleet, large = tmp_path / "fleet.yaml", tmp_path / "large.yaml"
    fleet.write_text(
        "apiVersion: strata/v1alpha1\nkind: Fleet\nname: small\n"
        "domains: [{name: a, accelerator: RTX4090, num_gpus: 1, gpus_per_node: 1}]\n"
    )
    large.write_text(JOB.replace("batch: 8", "batch: 512"))
    asked = [str(fleet), "--seconds", "5s"]
    assert answer(asked[0], job, *asked[1:])["reasons"] == []
    [reason] = answer(asked[0], str(large), *asked[1:])["reasons"]
    assert reason["token"] == "batch-cut"
    assert (reason["data"]["asked"], reason["data"]["batch"]) == (512, 64)
    shown = CliRunner().invoke(
        cli, ["serve", "simulate", asked[0], str(large), *asked[1:]], catch_exceptions=False
    )
    assert "batch-cut: memory has no room for 512 sequences a step" in " ".join(shown.stdout.split())


def test_the_same_seed_gives_the_same_answer_and_another_does_not(job):
    first, again, other = (answer("aws10", job, "--seconds", "10s", "--seed", seed) for seed in "112")
    assert first == again
    assert first["ttft_s"] != other["ttft_s"]


def test_a_trace_is_played_faster(job, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    found = answer("aws10", job, "--trace", str(trace), "--speed", "2")
    assert found["arrivals"]["format"] == "azure"
    assert found["window_s"] == pytest.approx([1.45, 14.5])
    assert answer("aws10", job, "--trace", str(trace), "--seconds", "5")["window_s"] == [0.5, 5.0]


def test_a_killed_node_is_told_and_nothing_is_lost(job):
    found = answer("aws10", job, "--seconds", "20s", "--kill", "Oregon/0@10s", "--config", "routing_strategy=rr")
    assert found["requests"]["served"] == found["requests"]["offered"]
    struck = [node for node in found["nodes"] if node["id"].startswith("Oregon/0")]
    assert struck
    assert all(node["busy_share"] < 0.7 for node in struck)


def test_what_was_refused_is_said_with_the_figures_of_the_first(job, tmp_path):
    strict = tmp_path / "strict.yaml"
    strict.write_text(JOB.replace("tpot: 100ms", "tpot: 1ms"))
    found = answer("aws10", str(strict), "--seconds", "5s")
    assert found["rejected_by_reason"] == {"goal-out-of-reach": found["requests"]["offered"]}
    why = found["rejected_first"]["goal-out-of-reach"]
    assert why.startswith("each token within 1ms, but even an idle pipeline needs ")
    shown = CliRunner().invoke(cli, ["serve", "simulate", "aws10", str(strict), "--seconds", "5s"]).stdout
    assert why in " ".join(shown.split())


def test_a_fault_that_came_after_the_end_is_said_to_be_none(job, capsys):
    asked = ["serve", "simulate", "aws10", job, "--seconds", "5s", "--kill"]
    assert run([*asked, "Oregon/0@10h"]) == 0
    assert "before --kill Oregon/0" in capsys.readouterr().err
    assert run([*asked, "Oregon/0@2s"]) == 0
    assert "before --kill" not in capsys.readouterr().err


def test_system_prompts_bursts_and_swings_are_taken(job):
    how = ["--system-prompts", "4x512", "--burst", "3", "--swing", "50%", "--period", "20s", "--lengths", "coding"]
    found = answer("aws10", job, "--seconds", "10s", *how)
    assert found["arrivals"] == {"rate_per_s": 6.0, "burst": 3.0, "swing": 0.5, "lengths": "coding"}


def test_people_see_times_and_a_picture(job, tmp_path):
    picture = tmp_path / "load.svg"
    found = CliRunner().invoke(
        cli, ["serve", "simulate", "aws10", job, "--seconds", "10s", "--svg", str(picture)], catch_exceptions=False
    )
    assert "first token" in found.stdout
    assert "trust: assumed" in found.stdout
    assert picture.read_text().startswith("<svg")


def test_an_interrupt_prints_the_report_so_far_and_exits_130(job, monkeypatch, capsys):
    def interrupted(replay, advance):
        while replay.clock.now < 12.0:
            replay.clock.step()
        return False

    monkeypatch.setattr("strata.serving.replay.engine.Replay.run", interrupted)
    assert run(["serve", "simulate", "aws10", job, "--seconds", "1min", "-o", "json"]) == 130
    told = capsys.readouterr()
    assert "interrupted after 12 s of 60 s" in told.err
    assert json.loads(told.out)["is_whole"] is False
    assert json.loads(told.out)["requests"]["served"] > 0


def test_domains_that_cannot_serve_are_named(tmp_path, job, capsys):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(SMALL.replace("\nlinks: []", ODD + "links: []"))
    assert run(["serve", "simulate", str(fleet), job, "--seconds", "5s"]) == 0
    assert "Odd" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        pytest.param(["--kill", "Oregon/0"], "which node and when", id="no-time"),
        pytest.param(["--kill", "Mars/0@3s"], "no node 'Mars/0'", id="unknown-node"),
        pytest.param(["--slow", "Oregon/0@3s"], "--slow NODE@60s*1.5", id="no-factor"),
        pytest.param(["--slow", "Oregon/0@3s*0"], "invalid time or factor", id="factor-0"),
        pytest.param(["--config", "heartbeat=3"], "heartbeat_timeout", id="unknown-setting"),
        pytest.param(["--config", "heartbeat_timeout=-1"], "not a number above 0", id="bad-setting"),
        pytest.param(["--config", "routing_strategy=best"], "one of auto, dp, rr", id="bad-strategy"),
        pytest.param(["--speed", "2"], "without --trace", id="speed-alone"),
        pytest.param(["--trace", "x.csv", "--rate", "3"], "--rate has no effect", id="both"),
        pytest.param(["--trace", "none.csv"], "no such file", id="no-trace"),
        pytest.param(["--seconds", "0"], "not above 0", id="no-time-at-all"),
        pytest.param(["--swing", "100%"], "below 100%", id="swing"),
        pytest.param(["--burst", "1000"], "--burst 3", id="burst"),
        pytest.param(["--rate", "nan"], "not a finite number", id="rate nan"),
        pytest.param(["--rate", "inf"], "not a finite number", id="rate inf"),
        pytest.param(["--system-prompts", "8"], "8x1024", id="system-prompts"),
    ],
)
def test_what_has_no_meaning_is_refused_with_a_hint(job, capsys, options, says):
    assert run(["serve", "simulate", "aws10", job, *options]) == 2
    assert says in capsys.readouterr().err


def test_a_model_that_fits_nowhere_exits_3_with_the_reason(tmp_path, capsys):
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(SMALL)
    job.write_text(JOB.replace("llama-3.1-8b", "llama-3.1-405b"))
    assert run(["serve", "simulate", str(fleet), str(job), "--seconds", "5s"]) == 3
    told = capsys.readouterr().err
    assert "layers" in told
    assert f"try: strata plan serve {fleet} {job}" in " ".join(told.split())


def test_a_fleet_that_dies_before_anything_is_counted_is_reported_and_not_called_too_small(tmp_path, job):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(SMALL)
    found = answer(str(fleet), job, "--seconds", "20s", "--kill", "Here/0@1s")
    assert found["requests"]["served"] == 0
    assert found["rejected_by_reason"] == {"not-served-in-time": found["requests"]["offered"]}
    assert found["requests"]["offered"] > 0


def test_the_memory_that_the_job_leaves_free_is_left_free(tmp_path, capsys):
    """The scheduler that is simulated left the usual 8 % free, whatever the job says."""
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(SMALL.replace("80GB", "40GB"))
    codes = []
    for headroom in ("75%", "0%"):
        job.write_text(JOB + f"memory_headroom: {headroom}\n")
        simulate = ["serve", "simulate", str(fleet), str(job), "--seconds", "5s"]
        codes.append((run(["plan", "serve", str(fleet), str(job)]) == 3, run(simulate) == 3))
    assert codes == [(True, True), (False, False)]


SMALL = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: small
domains:
  - {name: Here, accelerator: A100-SXM4-80GB, num_gpus: 1, gpus_per_node: 1}
links: []
"""
ODD = """
  - {name: Odd, accelerator: Oddity, num_gpus: 1, gpus_per_node: 1, intra_bandwidth: 32GB/s}
accelerators:
  Oddity: {vendor: Example, memory: 48GB, fp16: 120TFLOPS}
"""
