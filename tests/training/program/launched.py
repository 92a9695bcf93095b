"""Start the ranks of a plan on this machine, as a driver does, and read what they report."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from strata.training.export.launch import launch_data
from strata.training.export.ranks import RankLayout, rank_map
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.ports import free_ports

SMALL = ("strata.training.program.small", "--hidden-size", "16", "--tokens", "8")
HELD = str(Path(__file__).with_name("held.py"))
ALONE = TrainingPlan((Pipeline((Stage("a", 0, 5, 1),), 1, 6),), 4)
CHAIN = TrainingPlan((Pipeline((Stage("a", 0, 3, 1, 1), Stage("b", 3, 2, 1)), 1, 3),), 8)
COPIES = TrainingPlan((Pipeline((Stage("b", 0, 2, 1, 1), Stage("c", 2, 3, 1)), 2, 4, samples=24),), 3)


def _own(rank):
    return {"RANK": str(rank["rank"]), "LOCAL_RANK": str(rank["local_rank"])}


class Launched:
    """Attempts at one job in a folder, one at a time. command: a module of ours, and its arguments."""

    def __init__(self, folder, *, steps, save_every=0, command=SMALL):
        self.folder, self.steps, self.save_every, self.command, self.number = folder, steps, save_every, command, 0
        self.processes = []

    @property
    def gate(self):
        return self.folder / "gate"

    def hold(self, step):
        """Have the next attempt wait after a step, until it is released or asked to stop."""
        self.gate.write_text(str(step))

    def release(self):
        """Let every attempt go on."""
        self.gate.unlink()

    def start(self, plan):
        self.number += 1
        names = plan.domains
        layout = RankLayout(plan, dict.fromkeys(names, 64), dict.fromkeys(names, 4), dict.fromkeys(names, "cpu"))
        ranks = self.folder / f"ranks-{self.number}.json"
        ranks.write_text(json.dumps(launch_data(rank_map(layout), plan)))
        (port,) = free_ports(1)
        launch = json.loads(ranks.read_text())
        world = launch["world_size"]
        shared = {
            "STRATA_JOB": "job", "STRATA_ATTEMPT": str(self.number), "STRATA_RANKS": str(ranks),
            "STRATA_PROGRESS": str(self.folder / "progress.jsonl"), "STRATA_STEPS": str(self.steps),
            "STRATA_CHECKPOINTS": str(self.folder / "checkpoints"), "STRATA_SAVE_EVERY": str(self.save_every),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
            "LOCAL_WORLD_SIZE": str(world),
        }  # fmt: skip
        command = (sys.executable, HELD, str(self.gate), *self.command)
        self.processes = [
            subprocess.Popen(command, env={**os.environ, **shared, **_own(rank)}) for rank in launch["ranks"]
        ]

    def wait(self):
        return [process.wait(timeout=300) for process in self.processes]

    def until(self, step):
        """Return once so many steps are reported, or nothing runs any more."""
        while self.processes[0].poll() is None and max([0, *self.losses()]) < step:
            time.sleep(0.01)

    def lines(self):
        file = self.folder / "progress.jsonl"
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # one may be under way

    def losses(self):
        """Return the loss of each step, as it was reported last."""
        return {line["step"]: line["loss"] for line in self.lines() if "loss" in line}

    def steps_of(self, attempt):
        return [line["step"] for line in self.lines() if "loss" in line and line["attempt"] == attempt]
