"""From a real log to the next prediction: the program that `strata export` writes, run here in three layouts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata.cli.main import run
from strata.training.step_log import warm_up_steps
from tests.support.ports import free_ports

FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: desk
accelerators:
  core: {vendor: any, memory: 8GB, fp16: 0.1TFLOPS, memory_bandwidth: 10GB/s}
domains:
  - {name: desk, accelerator: core, num_gpus: 2, intra_bandwidth: 1GB/s}
"""
JOB = """\
apiVersion: strata/v1alpha1
kind: TrainingJob
name: small
model: config.json
train: {global_batch: 16, sequence: 64}
"""
CONFIG = {"model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 4, "n_positions": 64, "vocab_size": 64}
SHAPE = ("--hidden-size", "128", "--num-heads", "4", "--sequence-length", "64")
"""What `train.py` builds: the model of CONFIG."""
LAYOUTS = {"one": (1, 1), "stages": (2, 1), "copies": (1, 2)}
"""Stages of a pipeline and copies of it."""


def train(folder: Path, log: Path) -> None:
    """Run the launch script of an export on this machine, as whoever exported it would.

    Where others slow it down for a while, it runs again and longer, as `strata calibrate` asks for.
    """
    for steps in (30, 60, 120, 240):
        launch(folder, log, steps)
        if (
            warm_up_steps([float(time) for time in re.findall(r" time (\S+)s$", log.read_text(), re.MULTILINE)])
            < steps
        ):
            return


def launch(folder: Path, log: Path, steps: int) -> None:
    (port,) = free_ports(1)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PATH": path}
    (script,) = folder.glob("launch-*.sh")
    with log.open("w") as out:
        call = ["bash", script.name, "--steps", str(steps), *SHAPE]
        subprocess.run(call, cwd=folder, env={**os.environ, **variables}, stdout=out, timeout=240, check=True)


@pytest.mark.real("torch")
def test_logs_of_real_runs_in_three_layouts_calibrate_their_predictions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(CONFIG))
    Path("fleet.yaml").write_text(FLEET)
    Path("job.yaml").write_text(JOB)
    pairs = []
    for name, (stages, copies) in LAYOUTS.items():
        sizes = f"{{tensor: 1, pipeline: {stages}, data: {copies}, microbatch: 4}}"
        Path(f"job-{name}.yaml").write_text(f"{JOB}parallel: {sizes}\n")
        plan = f"{name}.json"
        call = ["plan", "train", "fleet.yaml", f"job-{name}.yaml", "--no-baselines", "--save", plan]
        assert run(call) == 0
        assert run(["export", plan, "--to", "torchrun", "--out", name]) == 0
        train(tmp_path / name, tmp_path / f"{name}.log")
        pairs += ["--run", f"{plan}:{name}.log"]
    capsys.readouterr()
    assert run(["calibrate", "fleet.yaml", "job.yaml", *pairs]) == 0
    with capsys.disabled():
        print("\n" + capsys.readouterr().out)  # noqa: T201 what it predicted and what was measured
    assert run(["calibrate", "fleet.yaml", "job.yaml", *pairs, "-o", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["calibration"].keys() == {"core"}
    assert all(row["steady_steps"] >= 5 and row["left_out_s"] > 0 for row in data["runs"])
    before, after = (
        np.array([np.log1p(row[f"{when}_error"]) for row in data["runs"]]) for when in ("before", "after")
    )
    assert np.sum(after**2) < np.sum(before**2)
    Path("short.log").write_text("".join(Path("one.log").read_text().splitlines(keepends=True)[:5]))
    assert run(["calibrate", "fleet.yaml", "job.yaml", "--run", "one.json:short.log"]) == 2
    assert "the steps are warm-up only" in capsys.readouterr().err
