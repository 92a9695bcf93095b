"""`strata up` as a process, and small real jobs for it: what users do, through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.training.program.launched import HELD

STRATA = (str(Path(sys.executable).parent / "strata"),)
NAMES = ("west", "east", "north")
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
SMALL = ("python", "-m", "strata.training.program.small", "--hidden-size", "128", "--tokens", "64")
TORCH = (
    "python", "-m", "strata.training.export.train", "--hidden-size", "128", "--num-heads", "4",
    "--sequence-length", "64",
)  # fmt: skip


def fleet_text(bandwidth="4MB/s", namespaces=None):
    """Return three domains of one core each, in these namespaces or as plain processes."""
    domains = []
    for index, name in enumerate(NAMES):
        driver = {"kind": "local"}
        if namespaces:
            address, interface = f"10.77.0.{index + 1}", "to-1" if index == 0 else "to-0"
            driver |= {"namespace": namespaces[index], "address": address, "interface": interface}
        domains.append({
            "name": name, "accelerator": "core", "num_gpus": 1, "gpus_per_node": 1, "intra_bandwidth": "5GB/s",
            "network_bandwidth": "5GB/s", "driver": driver,
        })  # fmt: skip
    rates = {"fp16": "40GFLOPS", "fp32": "40GFLOPS", "memory_bandwidth": "5GB/s"}
    core = {"vendor": "cpu", "memory": "16GB", **rates}
    pairs = [(a, b) for i, a in enumerate(NAMES) for b in NAMES[i + 1 :]]
    links = [{"between": list(pair), "bandwidth": bandwidth, "latency": "1ms"} for pair in pairs]
    data = {"apiVersion": "strata/v1alpha1", "kind": "Fleet", "name": "here", "accelerators": {"core": core}}
    return json.dumps({**data, "domains": domains, "links": links})


def job_text(name="small", *, steps=20, command=SMALL, stages=2, **run):
    """Return a job that takes two of the domains."""
    train = {"global_batch": 32, "sequence": 64, "precision": "fp32", "optimizer": "adam", "recompute": "none"}
    run = {"steps": steps, "resume": True, "grace": "30s", **run}
    return json.dumps({
        "apiVersion": "strata/v1alpha1", "kind": "TrainingJob", "name": name, "model": "config.json",
        "train": {**train, "schedules": ["1f1b"], "zero": [0]},
        "parallel": {"tensor": 1, "pipeline": stages, "data": 1, "microbatch": 2},
        "run": {"command": list(command), **run},
    })  # fmt: skip


def is_final(job):
    return job["phase"] in ("done", "failed", "cancelled")


class Service:
    """`strata up` on a fleet in a folder, and the commands that talk to it.

    policy: by default none that moves a job because its links seem slow, as those of a busy machine do.
    """

    def __init__(self, folder, fleet=None, *, policy="never"):
        self.folder, self.process = folder, None
        (folder / "config.json").write_text(json.dumps(MODEL))
        (folder / "fleet.json").write_text(fleet or fleet_text())
        self.options = ("--interval", "5s", "--probe-every", "3s", "--port", "0", "--policy", policy)
        self.url = ""

    def up(self, *options):
        with open(self.folder / "up.log", "ab") as log:
            self.process = subprocess.Popen(
                (*STRATA, "up", str(self.folder / "fleet.json"), *self.options, *options),
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        line = self.process.stdout.readline()
        assert line, (self.folder / "up.log").read_text()
        self.url = line.split()[3].rstrip(",")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def down(self):
        """End the daemon, then what it left running."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=300)
            self.process.stdout.close()
        for part in self.folder.glob("fleet.strata/domains/*/*"):
            if not (part / "stop.json").exists():
                (part / "stop.json").write_text('{"grace_s": 0}')

    def held(self, step, command=SMALL):
        """Return the command of a trainer that waits after a step until it is released, or asked to stop."""
        self.gate.write_text(str(step))
        python, _, module, *arguments = command
        return (python, HELD, str(self.gate), module, *arguments)

    def release(self):
        self.gate.unlink()

    @property
    def gate(self):
        return self.folder / "gate"

    def run(self, *arguments, check=True):
        environment = {**os.environ, "STRATA_SERVER": self.url}
        done = subprocess.run((*STRATA, *arguments), capture_output=True, text=True, env=environment, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done

    def submit(self, text):
        (self.folder / "job.json").write_text(text)
        return self.run("submit", str(self.folder / "job.json"))

    def job(self, name="small"):
        return json.loads(self.run("job", name, "-o", "json").stdout)

    def until(self, condition, name="small"):
        """Return the job once the condition holds of it."""
        while not condition(job := self.job(name)):
            assert self.process.poll() is None, (self.folder / "up.log").read_text()
            time.sleep(0.3)
        return job

    def lines(self):
        """Return what ranks reported, oldest first."""
        files = self.folder.glob("fleet.strata/domains/*/*/progress.jsonl")
        texts = [file.read_text() for file in files]
        whole = [text[: text.rfind("\n") + 1] for text in texts]  # a line may be under way
        lines = [json.loads(line) for text in whole for line in text.splitlines()]
        return sorted(lines, key=lambda line: line["at_s"])

    def reports(self):
        """Return what rank 0 reported, oldest first: (attempt, step, loss)."""
        return sorted((x["attempt"], x["step"], x["loss"]) for x in self.lines() if "loss" in x)
