from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.decision import Trust
from strata.evaluation.kpi import page, table
from strata.evaluation.kpi.kpi import NAMES, Kpi
from strata.evaluation.kpi.study import Study
from strata.training.hi_ppo.policy import safe_policy


def kpi(
    name: str, value: float | str, *, guards: dict[str, Any] | None = None, beside: dict[str, Any] | None = None
) -> Kpi:
    sense, target = ("is", "PPO") if name == "algorithm" else ("at least", 0.5)
    return Kpi(name, "what it is", "what it is held against", value, target, sense, (0.1, 0.9), 7,
               guards or {}, Trust.ANALYTIC, beside or {})  # fmt: skip


@pytest.fixture(autouse=True)
def _no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.training.hi_ppo.policy.load_policy", lambda _file: safe_policy())


def measuring(monkeypatch: pytest.MonkeyPatch, *rows: Kpi, interrupted: bool = False) -> None:
    def measured(_study: Study, **_more: Any) -> Iterator[Kpi]:
        yield from rows
        if interrupted:
            raise KeyboardInterrupt

    monkeypatch.setattr(table, "measure_all", measured)


def test_json_has_the_keys_that_were_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, *(kpi(name, "PPO" if name == "algorithm" else 0.6) for name in NAMES))
    data = json.loads(CliRunner().invoke(cli, ["kpi", "-o", "json"], catch_exceptions=False).stdout)
    assert [row["name"] for row in data["kpis"]] == list(NAMES)
    wanted = {"name", "definition", "baseline", "value", "target", "met", "ci95", "instances", "guards"}
    assert all(wanted <= set(row) for row in data["kpis"])
    assert set(data["policy"]) == {"file", "trained_at", "seed"}
    assert data["elapsed_s"] >= 0


def test_the_table_fits_80_columns_and_names_what_misses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = {"passes_only_against": ["home_domain"], "misses_against": ["mast_like"]}
    measuring(monkeypatch, kpi("communication_cost_reduction", 0.123456), kpi(NAMES[5], 0.6, guards=weak))
    assert run(["kpi"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "NO" in out
    assert "met against home_domain; not against mast_like" in " ".join(out.split())


def test_a_row_that_is_met_without_the_policy_says_so_first_and_shows_by_what(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = {"untrained": 0.55, "never": 0.4, "no_network_seen": None, "backfill": 0.7, "fcfs": 0.3}
    row = kpi("utilization_improvement", 0.6, beside=beside)
    assert (row.met_without, row.strongest) == (["untrained", "backfill"], "backfill")
    measuring(monkeypatch, row)
    assert run(["kpi"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    assert "yes, without, too" in words
    assert "60.0% 55.0% 40.0% - 70.0% backfill" in words
    study = Study(safe_policy(), lambda: 0.0, lambda: 0.0, quick=True)
    text = "\n".join(page.markdown(table.answer([row], study, elapsed_s=1.0, is_whole=True)))
    section = text.partition("## utilization_improvement\n\n")[2]
    assert section.startswith("**The target is also met by untrained, backfill.**\n")
    assert "| 0.6 | 0.55 | 0.4 | - | 0.7 | 0.3 |" in section


def test_a_row_that_is_missed_claims_nothing_of_what_stands_beside() -> None:
    missed = kpi("utilization_improvement", 0.4, beside={"never": 0.9})
    data = table.answer([missed], Study(safe_policy(), lambda: 0.0, lambda: 0.0), elapsed_s=1.0, is_whole=True)
    assert "also met" not in "\n".join(page.markdown(data))
    assert (kpi("algorithm", "PPO").met_without, kpi("algorithm", "PPO").strongest) == ([], None)


def test_a_missed_target_is_exit_4_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, kpi("allocation_error", 0.1))
    assert run(["kpi", "-o", "json"]) == 0
    assert run(["kpi", "-o", "json", "--fail-on-missed"]) == 4


def test_an_interrupt_prints_the_rows_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring(monkeypatch, kpi("algorithm", "PPO"), interrupted=True)
    assert run(["kpi", "-o", "json"]) == 130
    data = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in data["kpis"]] == ["algorithm"]
    assert data["interrupted"] is True


def test_an_unknown_row_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kpi", "--row", "speed"]) == 2
    assert "network_degradation" in capsys.readouterr().err


def test_the_page_holds_every_row_and_guard_and_says_when_it_was_quick() -> None:
    guards = {
        "misses_against": ["mast_like"],
        "share": 0.25,
        "spread": {"mean": 0.5, "median": None},
        "by_noise": {"ar1": {"degradation": 0.125, "spread": {"mean": 0.75}}},
    }
    study = Study(safe_policy(), lambda: 0.0, lambda: 0.0, quick=True)
    data = table.answer([kpi("network_degradation", 0.6, guards=guards)], study, elapsed_s=1.0, is_whole=True)
    text = "\n".join(page.markdown(data))
    for figure in ("0.25", "0.125", "0.75", "Not met against mast_like", "A quick run", "spread mean"):
        assert figure in text
