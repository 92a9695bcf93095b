"""Sizes that nobody has, and quantities without a unit, are refused in a sentence that says what is allowed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import strata
from strata.cli.main import run

PRESETS = Path(strata.__path__[0]) / "fleet" / "presets"
JOB = """apiVersion: strata/v1alpha1
kind: TrainingJob
name: big
model: opt-350m
train: {global_batch: BATCH, sequence: 1024}
"""


@pytest.mark.parametrize("number", [100_001, 10_000_000_000, 10**19])
def test_a_domain_has_a_number_of_accelerators_that_exists(tmp_path, capsys, number):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text((PRESETS / "seed.yaml").read_text().replace("num_gpus: 8", f"num_gpus: {number}", 1))
    assert run(["plan", "train", str(fleet), "opt-350m"]) == 2
    assert "more than strata plans for in a domain; the most is 100,000" in capsys.readouterr().err
    assert run(["whatif", "seed", "opt-350m", "--set", f"domain.Virginia.num_gpus={number}"]) == 2


@pytest.mark.parametrize("batch", ["100000000", "65537", "'1T tokens'"])
def test_a_batch_has_a_number_of_sequences_that_is_used(tmp_path, capsys, batch):
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("BATCH", batch))
    assert run(["plan", "train", "seed", str(job), "--time-limit", "5s"]) == 2
    assert "a batch has at most 65,536" in capsys.readouterr().err


def test_a_time_limit_and_a_price_need_their_unit(tmp_path, capsys):
    assert run(["plan", "train", "seed", "opt-350m", "--time-limit", "5"]) == 2
    assert "Invalid value for '--time-limit': '5' has no unit; write 30ms" in capsys.readouterr().err
    fleet = tmp_path / "fleet.yaml"
    text = (PRESETS / "aws10.yaml").read_text()
    fleet.write_text(re.sub(r"price: \$[0-9.]+/h", "price: 2.5", text, count=1))
    assert run(["lint", str(fleet)]) == 2
    assert "2.5 has no unit; write $2.50/h" in capsys.readouterr().err


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "ctrl", "n_embd": 1280, "n_layer": 48, "n_head": 16, "dff": 8192, "vocab_size": 246534},
        {"model_type": "xglm", "d_model": 1024, "num_layers": 24, "attention_heads": 16, "vocab_size": 256008},
    ],
)
def test_a_model_of_an_unsupported_type_is_named_as_that(tmp_path, capsys, config):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert run(["model", str(file)]) == 2
    shown = capsys.readouterr().err
    assert f"model_type {config['model_type']!r} is not supported" in shown
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("run", "--cores", "50%", "--", "true"), "Invalid value for '--cores': '50%' is not a whole number"),
        (("ui", "--port", "8k"), "Invalid value for '--port': '8k' is not a whole number"),
        (("host", "record", "--seconds", "10s"), "Invalid value for '--seconds': '10s' is not a number"),
    ],
)
def test_what_is_no_number_is_called_so(command, said, capsys):
    """They were "not a valid integer range"."""
    assert run(list(command)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("run", "--memory", "abc", "--", "true"), "--memory"),
        (("serve", "simulate", "aws10", "serve-llama-3.1-70b", "--seconds", "soon"), "--seconds"),
        (("serve", "simulate", "aws10", "serve-llama-3.1-70b", "--notice", "later"), "--notice"),
        (("testbed", "--bandwidth", "5"), "--bandwidth"),
        (("up", "aws10", "--interval", "0s"), "--interval"),
        (("kube", "agent", "--heartbeat", "-1s"), "--heartbeat"),
    ],
)
def test_a_quantity_that_is_none_is_named_by_its_option(command, option, capsys):
    assert run(list(command)) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err
