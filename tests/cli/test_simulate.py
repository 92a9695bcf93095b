import json
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.files import write_json
from strata.fleet.schema import load_fleet
from strata.simulate.analytic import StepModel
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job
from tests.support.training_plans import plan_data

FLEET, JOB = "aws10", "llama-3.1-70b"
ENDS = ("Virginia", "London")


def two_sites():
    count = len(load_job(JOB).layers)
    half = count // 2
    stages = (Stage(ENDS[0], 0, half, 8, 1), Stage(ENDS[1], half, count - half, 8))
    return TrainingPlan((Pipeline(stages, 1, 4),), 1)


def saved(*, inputs=None, pipelines=1):
    data = plan_data(
        load_fleet(FLEET),
        load_job(JOB),
        two_sites(),
        inputs={"fleet": FLEET, "job": JOB} if inputs is None else inputs,
    )
    data["plans"][0]["plan"]["pipelines"] *= pipelines
    return data


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json("plan.json", saved())
    return "plan.json"


def answer(*arguments):
    result = CliRunner().invoke(cli, ["simulate", *arguments, "-o", "json"], catch_exceptions=False)
    return json.loads(result.stdout)


def refused(capsys, *arguments):
    assert run(["simulate", *arguments]) == 2
    return capsys.readouterr().err


def test_one_plan_answers_with_its_step_report_whatever_the_backend(plan):
    report = StepModel(load_fleet(FLEET), load_job(JOB)).reports([two_sites()])[0]
    expected = json.loads(json.dumps(report.to_dict()))
    for backend in ("events", "analytic"):
        found = answer(plan, "--backend", backend)
        assert found.keys() == expected.keys()
        assert found["step_time_s"] == pytest.approx(expected["step_time_s"], rel=1e-9)
        assert found["stages"] == expected["stages"]


def test_several_jobs_share_the_links_and_each_has_a_name(plan):
    alone = answer(plan)["step_time_s"]
    jobs = answer(plan, plan)["jobs"]
    assert [job["name"] for job in jobs] == ["pp Virginia > London", "pp Virginia > London 2"]
    assert all(job["step_time_s"] > alone for job in jobs)


def test_a_seed_repeats_a_run(plan):
    first, again, other = (answer(plan, "--jitter", "5%", "--seed", seed) for seed in "112")
    assert first == again != other


def test_failures_and_restarts_cost_time(plan):
    alone = answer(plan)["step_time_s"]
    failed = answer(plan, "--fail", f"device:London@{alone / 2}s", "--restart", "100s")["step_time_s"]
    assert failed == pytest.approx(1.5 * alone + 100)


def test_the_timeline_is_written_in_both_forms(plan):
    answer(plan, "--timeline", "t.json", "--svg", "t.svg")
    with open("t.json", encoding="utf-8") as file:
        assert json.load(file)["traceEvents"]
    assert ElementTree.parse("t.svg").getroot().tag.endswith("svg")


def test_the_table_names_the_job_and_what_was_planned(plan):
    shown = CliRunner().invoke(cli, ["simulate", plan, plan], catch_exceptions=False)
    assert "vs planned" in shown.stdout
    assert [line.startswith("pp Virginia >") for line in shown.stdout.splitlines()].count(True) == 2
    assert "London 2" in shown.stdout


def test_jobs_that_want_the_same_devices_are_told_so(plan, capsys):
    run(["simulate", plan, plan, plan])
    assert "the jobs use 24 devices of Virginia, which has 16" in capsys.readouterr().err


def test_links_change_where_the_fleet_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_json("still.json", saved())
    text = (
        "topology:\n  domains:\n"
        "    - {name: Virginia, num_gpus: 8, intra_bandwidth: 300GB/s, intra_latency: 5us}\n"
        "    - {name: London, num_gpus: 8, intra_bandwidth: 300GB/s, intra_latency: 5us}\n"
        "  cross_domain_links:\n    - {source: Virginia, dest: London, bandwidth: 1Gbps, latency: 30ms}\n"
        "dynamics: {bandwidth_fluctuation: 0.3}\n"
    )
    (tmp_path / "seed.yaml").write_text(text)
    write_json("plan.json", saved(inputs={"fleet": "seed.yaml", "job": JOB}))
    steps = [answer("plan.json", "--seed", seed)["step_time_s"] for seed in "12"]
    assert len({*steps, answer("plan.json", "--backend", "analytic")["step_time_s"]}) == 3
    run(["simulate", "plan.json"])
    assert "note: links vary as seed.yaml says (`dynamics`)" in capsys.readouterr().err


def test_what_the_figures_do_not_show_is_said(plan, tmp_path, capsys):
    (tmp_path / "still.csv").write_text("time_s,Virginia>London\n0,1\n")
    faults = ("device:London@9h", "device:Tokyo@0.1s", "link:Virginia-Tokyo@0s+1s", "device:London@0.1s")
    run(["simulate", plan, "--vary", "still.csv", *(word for fault in faults for word in ("--fail", fault))])
    late, *unused = capsys.readouterr().err.splitlines()[-3:]
    assert late.startswith("note: device:London@9h changed nothing: the last step ended at ")
    assert unused == [f"note: {fault} changed nothing: no plan uses it" for fault in faults[1:3]]


def test_links_change_as_a_trace_or_a_process_says(plan, tmp_path):
    still = answer(plan)["step_time_s"]
    halved = "time_s,Virginia>London,London>Virginia\n0,0.5,0.5\n"
    (tmp_path / "halved.csv").write_text(halved)
    (tmp_path / "later.csv").write_text(halved.replace("\n0,0.5,0.5", f"\n0,1,1\n{still},0.5,0.5"))
    slower = answer(plan, "--vary", "halved.csv")["step_time_s"]
    assert slower > still
    assert answer(plan, "--vary", "later.csv")["step_time_s"] == pytest.approx(still)
    assert still < answer(plan, "--vary", "later.csv", "--steps", "2")["step_time_s"] < slower
    assert answer(plan, "--vary", "halved.csv", "--vary", "halved.csv")["step_time_s"] > slower
    assert len({answer(plan, "--vary", "ou:20%/10min", "--seed", seed)["step_time_s"] for seed in "12"}) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend", "analytic", "--vary", "uniform:30%"], "the analytic backend knows no --vary"),
        (["--vary", "rain"], "cannot read 'rain' as link dynamics"),
        (["--backend", "analytic", "--jitter", "5%"], "the analytic backend knows no --jitter"),
        (["--jitter", "lots"], "not a share"),
        (["--jitter", "5"], "not a share"),
        (["--restart", "-3s"], "-3s is below 0"),
        (["--fail", "device:Mars@3s"], "no domain 'Mars'"),
        (["--backend", "astra", "--svg", "t.svg"], "leaves no timeline"),
        (["plan.json", "--backend", "astra"], "one job at a time"),
        (["plan.json", "--compare"], "one job at a time"),
    ],
)
def test_what_cannot_be_asked_is_refused(plan, capsys, arguments, says):
    assert says in refused(capsys, plan, *arguments)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"inputs": {}}, "does not name its fleet and job files"),
        ({"inputs": {"fleet": "gone.yaml", "job": JOB}}, "cannot be read"),
        ({"inputs": {"fleet": "hub", "job": JOB}}, "no longer fits hub: there is no domain Virginia"),
        (
            {"inputs": {"fleet": FLEET, "job": "llama-3.1-8b"}},
            "a plan of llama-3.1-70b, and the job trains llama-3.1-8b",
        ),
        ({"pipelines": 2}, "no links to sum their gradients over"),
    ],
)
def test_a_plan_whose_fleet_or_job_is_gone_says_so(tmp_path, monkeypatch, capsys, changed, says):
    monkeypatch.chdir(tmp_path)
    write_json("plan.json", saved(**changed))
    error = refused(capsys, "plan.json")
    assert says in error
    assert "try: strata plan train" in error


def test_plans_for_two_fleets_are_refused(plan, capsys, tmp_path):
    (tmp_path / "other.yaml").write_text(
        "apiVersion: strata/v1alpha1\nkind: Fleet\nname: other\ndomains:\n"
        "  - {name: Virginia, accelerator: A100-SXM4-40GB, num_gpus: 16}\n"
        "  - {name: London, accelerator: A100-SXM4-40GB, num_gpus: 16}\n"
        "links:\n  - {source: Virginia, dest: London, bandwidth: 1Gbps, latency: 30ms, symmetric: true}\n"
    )
    write_json("other.json", saved(inputs={"fleet": "other.yaml", "job": JOB}))
    assert "another fleet" in refused(capsys, plan, "other.json")


def test_a_plan_that_does_not_fit_or_skips_samples_says_so_and_exits_3(plan, capsys):
    assert run(["simulate", plan, "-o", "json"]) == 3
    told = capsys.readouterr()
    assert "stage 0 in Virginia: needs" in told.err
    assert "works through 4 samples a step where the job's global batch is 512" in told.err
    tokens = 4 * load_job(JOB).sequence_length
    report = json.loads(told.out)
    assert report["tokens_per_s"] == pytest.approx(tokens / report["step_time_s"])
