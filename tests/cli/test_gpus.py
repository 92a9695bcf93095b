import json

import pytest
import yaml
from click.testing import CliRunner

from strata.cli.main import cli, run
from strata.fleet.catalogue import accelerators


def answer(*arguments):
    result = CliRunner().invoke(cli, ["gpus", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_table_has_a_line_a_card_within_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = answer().splitlines()
    assert max(map(len, lines)) <= 110  # the note below the table is not cut
    for card in accelerators():
        line = next(line for line in lines if line.startswith(f"{card.name} "))
        assert len(line.rstrip()) <= 80
        assert line.rstrip().endswith(card.trust.value)


def test_one_card_is_shown_with_its_source_aliases_and_acu():
    text = answer("910b3")
    assert "Ascend910B3 (Huawei)" in text
    assert "313.2" in text
    assert "FlagPerf" in text
    assert "measured" in text


def test_json_and_yaml_hold_the_same_with_units_in_the_keys():
    data = json.loads(answer("A100-80GB", "-o", "json"))
    assert data == yaml.safe_load(answer("A100-80GB", "-o", "yaml"))
    assert data["memory_bytes"] == 80 * 2**30
    assert data["fp16_flops"] == 312e12
    assert data["memory_bandwidth_bytes_per_s"] == 2039e9
    assert data["acu"]["fp16"] == pytest.approx(100)
    assert data["acu_trust"]["fp16"] == "calibrated"


def test_an_unknown_figure_is_null():
    data = json.loads(answer("P800", "-o", "json"))
    assert data["memory_bytes"] is None
    assert data["acu"]["memory"] is None


def test_a_need_lists_every_card_and_marks_the_best_of_each_vendor():
    data = json.loads(answer("--need", "100TFLOPS fp16, 160GB memory", "-o", "json"))
    assert data["need"] == {"fp16_flops": 100e12, "memory_bytes": 160e9}
    assert {card["name"] for card in data["cards"]} == {card.name for card in accelerators()}
    best = {card["vendor"]: card["count"] for card in data["cards"] if card["best_of_vendor"]}
    for card in data["cards"]:
        assert card["count"] is None or card["count"] >= best[card["vendor"]]
    unknown = next(card for card in data["cards"] if card["name"] == "MLU590-M9")
    assert unknown["count"] is None
    assert unknown["missing"] == ["MLU590-M9 fp16"]


def test_the_table_of_a_need_names_the_missing_figure():
    lines = answer("--need", "100TFLOPS fp16", "--vendor", "huawei").splitlines()
    assert next(line for line in lines if "Ascend910B1" in line).rstrip().endswith("unknown: fp16")
    assert sum(line.startswith("*  ") for line in lines) == 1


def test_a_vendor_filters_the_list():
    assert {card["vendor"] for card in json.loads(answer("--vendor", "hygon", "-o", "json"))} == {"Hygon"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["910B"], "ambiguous"),
        (["H1000"], "did you mean 'H100-SXM5-80GB'"),
        (["--vendor", "acme"], "no card here is of vendor 'acme'"),
        (["--need", "100TFLOPS"], "cannot read '100TFLOPS'"),
    ],
)
def test_a_wrong_request_exits_2_and_says_why(arguments, message, capsys):
    assert run(["gpus", *arguments]) == 2
    assert message in capsys.readouterr().err
