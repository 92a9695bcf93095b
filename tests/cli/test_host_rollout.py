"""`strata host rollout`: from init to the report, through the state file; twice the same is once."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
from click.testing import CliRunner, Result

from strata.cli.main import cli
from strata.errors import GoalMissed
from strata.host.rollout.pictures import svg, text
from strata.host.rollout.report import report_of
from strata.host.rollout.rollout import Arm, RolloutPlan, Rules
from strata.host.rollout.store import opened
from tests.host.rollout.rollouts import simulated


def rollout(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["host", "rollout", *map(str, arguments)])


def answer(*arguments: object) -> dict:
    return json.loads(rollout(*arguments, "-o", "json").stdout)


def attempt(number: int, policy: str, *how: object, job: str = "ads-7") -> Result:
    return rollout("add", "layered", "--job", job, "--attempt", number, "--policy", policy, *how)


@pytest.fixture
def begun():
    assert rollout("init", "layered", "--aa-pairs", 8, "--opt-out", "team=infra").exit_code == 0


def test_from_init_to_going_back(begun, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("qps 101.5\n")
    for number in range(16):
        how = ("--from", log) if number == 3 else ("--value", 100 + number % 3)
        assert attempt(number, "baseline", *how).exit_code == 0
    asked = ("next", "layered", "--job", "ads-9", "--attempt")
    first, second = (answer(*asked, number)["policy"] for number in (0, 1))
    assert {first, second} == {"baseline", "candidate"}
    assert answer(*asked, 0)["policy"] == first
    assert answer(*asked, 2, "--team", "infra")["reason"]["token"] == "rollout-opted-out"
    for job in ("a", "b", "c"):
        for number in range(4):
            worse = number % 2
            attempt(number, "candidate" if worse else "baseline", "--value", 30 if worse else 100, job=job)
    status = rollout("status", "layered", "-o", "json")
    assert isinstance(status.exception, GoalMissed)
    data = json.loads(status.stdout)
    assert (data["status"], data["reason"]["token"]) == ("roll-back", "rollout-jobs-worse")
    assert data["jobs_back"] == ["a", "b", "c"]
    assert answer(*asked, 4)["policy"] == "baseline"


def test_adding_the_same_attempt_again_changes_nothing_and_another_value_is_refused(begun):
    assert "recorded" in attempt(0, "baseline", "--value", 5).stderr
    before = answer("status", "layered")
    again = attempt(0, "baseline", "--value", 5)
    assert "known" in again.stderr
    assert answer("status", "layered") == before
    other = attempt(0, "baseline", "--value", 6)
    assert "recorded already, with 5 under baseline" in str(other.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "layered"),
        ("report", "layered"),
        ("change", "layered", "--stop"),
        ("next", "layered", "--job", "a", "--attempt", 0),
        ("add", "layered", "--job", "a", "--attempt", 0, "--policy", "baseline", "--value", 1),
    ],
    ids=lambda arguments: arguments[0],
)
def test_only_init_makes_a_file(begun, tmp_path, arguments):
    typo = tmp_path / "typo.db"
    result = rollout(*arguments, "--state", typo)
    assert getattr(result.exception, "exit_code", result.exit_code) == 2
    assert "no such file" in str(result.exception)
    assert not typo.exists()


def test_two_hosts_that_ask_for_one_attempt_at_once_are_told_the_same(tmp_path):
    with opened(tmp_path / "s.db", is_new=True) as store:
        store.init(RolloutPlan("p"), Rules(), at_s=0.0)
        before = store.get("p")
        said = [store.assign(before, "job", 0, policy, at_s=0.0) for policy in Arm]
        assert said == [Arm.BASELINE, Arm.BASELINE]


def test_rules_change_on_the_way_and_a_stop_stays(begun):
    asked = ("next", "layered", "--job", "x", "--attempt", 0)
    assert answer(*asked)["reason"]["token"] == "rollout-noise-first"
    assert rollout("change", "layered", "--opt-out", "job=x").exit_code == 0
    assert answer(*asked)["reason"]["token"] == "rollout-opted-out"
    rollout("change", "layered", "--share", 0)
    assert answer(*asked[:3], "y", *asked[4:])["reason"]["token"] == "rollout-outside-share"
    rollout("change", "layered", "--stop", "--share", 1)
    rollout("change", "layered", "--share", 0.5)
    assert answer("status", "layered")["status"] == "stopped"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("init", "layered"), "called 'layered' already"),
        (("status", "other"), "no roll-out is called 'other'"),
        (("init", "new", "--opt-in", "queue=x"), "LABEL=PATTERN"),
        (("add", "layered", "--job", "a", "--attempt", 0, "--policy", "baseline"), "one of --from, --value"),
        (
            ("add", "layered", "--job", "a", "--attempt", 0, "--policy", "baseline", "--value", 0),
            "not in the range",
        ),
        *(
            (("add", "layered", "--job", "a", "--attempt", 0, "--policy", "baseline", "--value", value), "finite")
            for value in ("nan", "inf", "1e999")
        ),
        (("init", "new", "--guard", "nan"), "finite"),
        (("init", "new", "--share", "nan"), "finite"),
        (("init", " "), "not a valid name"),
        (("init", "a\nb"), "not a valid name"),
        (("init", "new", "--pattern", "("), "pattern '('"),
        (("init", "new", "--pattern", "qps"), "has no group"),
        (("init", "new", "--pattern", "(x)", "--metric", "y"), "take one"),
    ],
)
def test_wrong_requests_are_told(begun, arguments, said):
    result = rollout(*arguments)
    assert getattr(result.exception, "exit_code", result.exit_code) == 2
    assert said in result.output + str(result.exception)


def test_the_report_has_both_histograms_and_the_cdf_and_fits_80_columns(begun, tmp_path):
    for number in range(16):
        attempt(number, "baseline", "--value", 100 + number % 3)
    for number in range(6):
        attempt(number, "candidate" if number % 2 else "baseline", "--value", 100 + 4 * (number % 2), job="b <&>")
    picture = tmp_path / "figures.svg"
    shown = rollout("report", "layered", "--svg", picture)
    assert shown.exit_code == 0
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert "A/A, 8 pairs" in shown.stdout
    assert "percentile of A/B pairs" in shown.stdout
    assert len(ElementTree.parse(picture).getroot()) > 40
    data = answer("report", "layered")
    assert len(data["ratios"]["aa"]) == 8
    assert data["ratios"]["ab"] == pytest.approx([1.04] * 3)


def test_pictures_of_a_simulated_roll_out_hold_every_pair():
    report = report_of(simulated(3, 0.04)[0])
    assert report.ratio is not None
    assert report.ratio.low > 1
    assert sum(line.count("#") for line in text(report)) > 60
    assert max(map(len, text(report))) <= 80
    root = ElementTree.fromstring(svg(report))
    assert "http" not in svg(report).replace("http://www.w3.org/2000/svg", "")
    curves = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len(one.attrib["points"].split()) for one in curves] == [
        2 * len(report.verdict.aa), 2 * len(report.verdict.ab),
    ]  # fmt: skip
