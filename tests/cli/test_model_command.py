from __future__ import annotations

import json

import pytest
import yaml

from strata.cli.main import run
from strata.workload.huggingface import model, model_names


@pytest.fixture
def strata(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["model", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_without_a_config_the_shipped_models_are_listed(strata):
    code, out, _ = strata()
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:] if line and line[0] != "`"] == model_names()
    assert [row["name"] for row in json.loads(strata("-o", "json")[1])] == model_names()


def test_a_model_is_shown_in_full(strata):
    code, out, _ = strata("llama-3.1-8b", "--sequence", "8192")
    assert code == 0
    for figure in ("8,030,261,248", "15GiB bf16", "89.7GiB", "128KiB", "8,192 tokens"):
        assert figure in out
    assert [line.split()[:2] for line in out.splitlines()[-3:]] == [
        ["embedding", "1"],
        ["dense", "32"],
        ["head", "1"],
    ]


def test_layers_that_look_back_at_a_window_stand_apart(strata, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8, "head_dim": 8,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "sliding_window": 16,
    }))  # fmt: skip
    rows = json.loads(strata(str(config), "--sequence", "64", "-o", "json")[1])["layers"]
    assert [(row["kind"], row["count"], row["window_tokens"]) for row in rows[1:-1]] == [
        ("dense", 3, 16), ("dense", 3, None)]  # fmt: skip
    assert rows[1]["forward_flop_per_sample"] < rows[2]["forward_flop_per_sample"]
    assert "dense, window 16" in strata(str(config), "--sequence", "64")[1]


@pytest.mark.parametrize("arguments", [[], *([name] for name in model_names())], ids=str)
def test_a_table_fits_80_columns(strata, arguments, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(len(line) for line in strata(*arguments)[1].splitlines() if not line.startswith("note")) <= 80


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_a_program_gets_the_same_figures_with_their_units(strata, form, read):
    data, spec = read(strata("qwen3-30b-a3b", "-o", form)[1]), model("qwen3-30b-a3b")
    assert (data["num_params"], data["num_active_params"]) == (spec.num_params, spec.num_active_params)
    assert data["training_state_bytes"] == 16 * spec.num_params
    assert data["sequence_tokens"] == 4096
    assert sum(layer["count"] * layer["num_params"] for layer in data["layers"]) == spec.num_params
    flop = sum(layer["count"] * layer["forward_flop_per_sample"] for layer in data["layers"])
    assert data["forward_flop_per_token"] == pytest.approx(flop / 4096)
    assert (data["trust"], data["notes"]) == ("analytic", [])


def test_a_sample_is_no_longer_than_learned_positions(strata):
    assert json.loads(strata("gpt2", "-o", "json")[1])["sequence_tokens"] == 1024
    code, _, err = strata("gpt2", "--sequence", "1025")
    assert code == 2
    assert "try: --sequence 1024" in err


def test_notes_are_shown(strata):
    assert "multi-token-prediction layers are not counted" in strata("deepseek-v3")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["lama-3.1-8b"], "did you mean 'llama-3.1-8b'?", id="name"),
        pytest.param(["./config.json"], "no such file", id="path"),
        pytest.param(["gpt2", "--sequence", "0"], "--sequence", id="zero"),
    ],
)
def test_a_wrong_call_exits_2_and_says_why(strata, arguments, said):
    code, out, err = strata(*arguments)
    assert (code, out) == (2, "")
    assert said in err
