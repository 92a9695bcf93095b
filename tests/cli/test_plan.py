"""`strata plan train` and `demo` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata.cli.main import run
from strata.cli.plan_table import show_comparison
from tests import ROOT

FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: pair
domains:
  - {name: West, accelerator: A100-SXM4-80GB, num_gpus: 8, price: $2/h}
  - {name: East, accelerator: A100-SXM4-80GB, num_gpus: 8, price: $2/h}
links:
  - {between: [West, East], bandwidth: 5Gbps, latency: 30ms, price: $0.02/GB}
"""
JOB = """\
apiVersion: strata/v1alpha1
kind: TrainingJob
name: small
model: opt-350m
train: {global_batch: 16, sequence: 2048}
"""
PLAN_KEYS = {
    "rank", "step_time_s", "tokens_per_s", "utilization", "wan_bytes_per_step", "cost_usd_per_mtoken", "domains",
    "stages", "microbatches", "schedule", "fits_memory", "trust", "reasons",
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    fleet, job = tmp_path / "fleet.yaml", tmp_path / "job.yaml"
    fleet.write_text(FLEET)
    job.write_text(JOB)
    return fleet, job


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    """Plan without baselines, which take most of the time, unless they are asked for."""
    baselines = () if "--baselines" in arguments else ("--no-baselines",)
    code = run(["plan", "train", *map(str, arguments), *baselines, "-o", "json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = run(["plan", "train", *map(str, arguments)])
    return code, capsys.readouterr().err


def test_domains_that_are_alike_both_have_rows(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a plan that was known before the exact search the like domain got none."""
    _, data = planned(capsys, *files, "--top", 4)
    steps = {plan["name"]: plan["step_time_s"] for plan in data["plans"]}
    assert steps["single East"] == steps["single West"]


def test_json_has_the_stable_keys(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, data = planned(capsys, *files, "--top", 2, "--baselines")
    assert code == 0
    assert {"plans", "baselines", "proof", "search_s"} <= data.keys()
    assert {"bound_s", "gap"} <= data["proof"].keys()
    assert len(data["plans"]) == 2
    assert all(plan.keys() >= PLAN_KEYS for plan in data["plans"])
    assert data["plans"][0]["rank"] == 1
    assert data["proof"]["bound_s"] <= data["plans"][0]["step_time_s"]
    assert data["plans"][0]["step_time_s"] <= data["plans"][1]["step_time_s"]
    assert "best_single_domain" in data["baselines"]
    assert data["baselines"]["equal_gpus_one_domain"]["step_time_s"] <= data["plans"][0]["step_time_s"]


def test_the_table_fits_80_columns(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run(["plan", "train", *map(str, files), "--pareto"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("as many GPUs, one domain" in line for line in lines)
    assert any("Pareto" in line for line in lines)


def test_why_not_says_what_was_searched_in_part_and_has_no_row(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = planned(capsys, *files, "--top", 1)
    hedge = "searched in part, so that it may do better"
    for ranks, is_said in (([], False), ([2], True)):
        data["proof"]["rows_searched_in_part"] = ranks
        assert is_said == any(hedge in str(part) for part in show_comparison(data))


def test_money_as_the_goal_never_costs_more(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, fast = planned(capsys, *files)
    _, cheap = planned(capsys, *files, "--minimize", "cost")
    assert cheap["plans"][0]["cost_usd_per_mtoken"] <= fast["plans"][0]["cost_usd_per_mtoken"]
    assert cheap["proof"]["bound_s"] is None


def test_weights_belong_to_reward_and_tchebycheff(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = planned(capsys, *files, "--minimize", "tchebycheff", "--weights", "1,0,0")
    assert code == 0
    assert data["objective"] == "tchebycheff"
    code, data = planned(capsys, *files, "--weights", "1,0,0")
    assert (code, data["objective"]) == (0, "reward")
    code, text = refused(capsys, *files, "--minimize", "time", "--weights", "1,0,0")
    assert code == 2
    assert "tchebycheff" in text
    assert refused(capsys, *files, "--minimize", "reward", "--weights", "1,2")[0] == 2


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        pytest.param(
            FLEET.replace("num_gpus: 8, price", "num_gpu: 8, price", 1), ":5:", "num_gpus", id="unknown-key"
        ),
        pytest.param(FLEET.replace("5Gbps", "5Gb"), ":8:", "Gb", id="wrong-unit"),
        pytest.param(FLEET.replace("5Gbps", "5"), ":8:", "no unit", id="no-unit"),
        pytest.param(FLEET.replace("num_gpus: 8", "num_gpus: 0", 1), ":5:", "accelerators", id="no-accelerators"),
        pytest.param(FLEET.replace("num_gpus: 8", "num_gpus: -8", 1), ":5:", "", id="negative"),
        pytest.param(FLEET.replace("5Gbps", "-5Gbps"), ":8:", "", id="negative-bandwidth"),
        pytest.param(FLEET.replace("name: East", "name: West"), ":6:", "West", id="name-twice"),
        pytest.param(FLEET.replace("[West, East]", "[West, Easst]"), ":8:", "East", id="unknown-domain"),
    ],
)
def test_a_bad_fleet_is_refused_with_its_place(
    text: str, place: str, says: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text(text)
    code, message = refused(capsys, *files)
    assert code == 2
    assert f"fleet.yaml{place}" in message
    assert says in message


def test_bytes_that_are_no_text_are_refused(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[1].write_bytes(JOB.encode() + b"# \xff\n")
    code, message = refused(capsys, *files)
    assert code == 2
    assert "UTF-8" in message
    assert "job.yaml:6:" in message


def test_a_file_of_50_mb_is_refused(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with files[0].open("wb") as file:
        file.truncate(50_000_000)
    code, message = refused(capsys, *files)
    assert code == 2
    assert "larger than" in message


def test_a_missing_link_is_named_and_the_domains_work_alone(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text(FLEET[: FLEET.index("links:")])
    code, data = planned(capsys, *files)
    assert code == 0
    assert len(data["plans"][0]["domains"]) == 1
    texts = [reason["text"] for reason in data["reasons"]]
    assert any("West-East" in text for text in texts)
    assert {"unreachable", "link-missing"} <= {reason["token"] for reason in data["reasons"]}


def test_many_missing_links_are_one_reason(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Eight lines of a fleet of twelve domains in a row hid what else there was to say."""
    domain = "  - {{name: D{}, accelerator: A100-SXM4-80GB, num_gpus: 8}}\n"
    files[0].write_text(
        FLEET[: FLEET.index("  - {name: West")] + "".join(domain.format(i) for i in range(4))
        + "links:\n  - {between: [D0, D1], bandwidth: 5Gbps, latency: 30ms}\n"
    )  # fmt: skip
    _, data = planned(capsys, *files)
    texts = [reason["text"] for reason in data["reasons"] if "missing" in reason["token"]]
    assert texts == ["no link between 5 pairs of domains: D0-D2, D0-D3, D1-D2 and 2 more"]


@pytest.mark.long("searches the relaxations of a job")
def test_a_model_that_fits_nowhere_exits_3_with_the_smallest_relaxation(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[1].write_text(JOB.replace("opt-350m", "llama-3.1-405b"))
    code, data = planned(capsys, *files)
    assert code == 3
    assert data["plans"] == []
    needs = [reason for reason in data["reasons"] if reason["token"] == "needs-devices"]
    assert len(needs) == 1
    more = int(needs[0]["data"]["count"])
    grown = FLEET.replace("num_gpus: 8", f"num_gpus: {8 + more}", 1)
    files[0].write_text(grown)
    assert planned(capsys, *files)[0] == 0


def test_recompute_is_offered_where_it_is_what_is_missing(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job = JOB.replace("opt-350m", "llama-3.1-8b").replace("sequence: 2048", "sequence: 131072, recompute: none")
    files[0].write_text(FLEET[: FLEET.index("links:")])
    files[1].write_text(job)
    code, data = planned(capsys, *files)
    assert code == 3
    assert "fits-with-recompute" in {reason["token"] for reason in data["reasons"]}
    files[1].write_text(job.replace("none", "full"))
    assert planned(capsys, *files)[0] == 0


@pytest.mark.parametrize(
    ("limits", "least"), [("tokens_per_s: 1e12", "tokens_per_s"), ("cost: $0.0000001", "cost")]
)
def test_a_limit_nothing_meets_is_named_with_what_could_be_met(
    limits: str, least: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, free = planned(capsys, *files, "--minimize", "cost" if least == "cost" else "time")
    files[1].write_text(JOB + f"limits: {{{limits}}}\n")
    code, data = planned(capsys, *files)
    assert code == 3
    [reason] = [r for r in data["reasons"] if r["token"] == "needs-limit"]
    assert reason["data"]["limit"] == least
    best = free["plans"][0]
    if least == "tokens_per_s":
        assert int(reason["data"]["value"].replace(",", "")) == int(best["tokens_per_s"])
    else:
        assert reason["data"]["value"].startswith(f"${best['cost_usd_per_step']:.3g}")


def test_no_time_at_all_exits_6_unless_one_domain_holds_the_job(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = refused(capsys, files[0], "llama-3.1-70b", "--time-limit", "0")
    assert code == 6
    assert "try: --time-limit" in message
    assert planned(capsys, *files, "--time-limit", "0")[1]["plans"][0]["kind"] == "single"
    assert refused(capsys, *files, "--time-limit", "-1s")[0] == 2
    assert refused(capsys, *files, "--time-limit", "soon")[0] == 2


def test_unknown_names_offer_the_nearest(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, message = refused(capsys, "aws1", files[1])
    assert code == 2
    assert "aws10" in message


def test_no_baselines_are_compared_where_none_are_wanted(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = planned(capsys, *files)
    assert (code, data["baselines"]) == (0, {})
    assert run(["plan", "train", *map(str, files), "--no-baselines"]) == 0
    assert "compared with" not in capsys.readouterr().out


def test_a_baseline_cut_short_says_so(files: tuple[Path, Path]) -> None:
    from strata.fleet.schema import load_fleet
    from strata.training.plan.compare import plan_request
    from strata.training.plan.planned import PlanRequest
    from strata.workload.schema import load_job

    fleet, job = load_fleet(files[0]), load_job(files[1])
    reads = iter(range(10**9))
    request = PlanRequest(time_limit_s=1e9)
    whole = plan_request(fleet, job, request, clock=lambda: float(next(reads)))
    enough = next(reads)
    assert {result.absent for result in whole.baselines.values()} <= {"", "no plan of this rule fits"}
    reads = iter(range(10**9))
    # The search ends well before three quarters of the limit, the baselines do not.
    cut = plan_request(fleet, job, PlanRequest(time_limit_s=enough * 0.5), clock=lambda: float(next(reads)))
    assert cut.best == whole.best
    assert "out of time" in {result.absent for result in cut.baselines.values()}
    assert next(reads) < enough
    assert all(cut.baselines[name].plan in (None, result.plan) for name, result in whole.baselines.items())


def test_ctrl_c_in_a_baseline_ends_the_command(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata.training.plan.baselines import exact_rules

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(exact_rules, "best_of", interrupted)
    code, data = planned(capsys, *files, "--baselines")
    assert code == 130
    assert data["plans"]
    assert "latency_blind" not in data["baselines"]


def test_the_table_is_printed_before_the_comparison_begins(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata.training.plan import compare

    shown = []

    def rule(*_: Any) -> None:
        shown.append(capsys.readouterr().out)

    monkeypatch.setattr(compare, "BASELINES", {"home_domain": rule})
    assert run(["plan", "train", *map(str, files)]) == 0
    rest = capsys.readouterr().out
    assert "optimality gap" in shown[0]
    assert "optimality gap" not in rest
    assert rest.strip().startswith("compared with")
    assert "next:" in rest


@pytest.mark.long("plans twice with all baselines")
def test_the_same_seed_gives_the_same_answer(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[0].write_text(FLEET.replace("num_gpus: 8", "num_gpus: 2"))

    def answer() -> str:
        _, data = planned(capsys, *files, "--baselines")
        return json.dumps({**data, "search_s": 0})

    assert answer() == answer()


def test_ctrl_c_prints_the_best_so_far_and_exits_130(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata.training.plan.exact.search import Search

    evaluate = Search.evaluate
    calls = 0

    def stop_after_one(self: Search, plans: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KeyboardInterrupt
        return evaluate(self, plans, **more)

    monkeypatch.setattr(Search, "evaluate", stop_after_one)
    code, data = planned(capsys, *files)
    assert code == 130
    assert data["plans"]
    assert data["proof"]["gap"] is None


@pytest.mark.long("three exact plans with all baselines on fleets of a real size")
def test_demo_plans_three_jobs_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--out", str(tmp_path / "out"), "-o", "json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert len(answers) == 3
    kinds = [answer["plans"][0]["kind"] for answer in answers]
    assert "single" in kinds
    assert any(kind != "single" for kind in kinds)
    assert {reason["token"] for reason in answers[0]["reasons"]} >= {"chosen", "compute-bound"}
    assert len(list((tmp_path / "out").glob("*.json"))) == 3
    assert all(answer["proof"]["gap"] < 5e-3 for answer in answers)


@pytest.mark.long  # seconds a pair
@pytest.mark.parametrize("job", sorted(path.name for path in (ROOT / "examples").glob("job-*.yaml")))
def test_every_example_job_is_planned_on_the_example_fleet(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, data = planned(capsys, ROOT / "examples/fleet.yaml", ROOT / "examples" / job)
    assert (code, bool(data["plans"])) == (0, True)
