"""A pipeline on one made-up card, and logs of what it takes by the model itself."""

from __future__ import annotations

import numpy as np

from strata.fleet.schema import load_fleet
from strata.serving.measured.engine import EngineRun
from strata.serving.measured.log import Log
from strata.serving.measured.pipeline import MeasuredPipeline
from strata.workload import huggingface
from strata.workload.inference import ModelInfo
from strata.workload.requests import Request
from strata.workload.serving_job import Demand, ServingJob

FLEET = """\
apiVersion: strata/v1alpha1
kind: Fleet
name: lab
accelerators:
  LabCard: {vendor: Example, memory: 48GB, fp16: 120TFLOPS, memory_bandwidth: 900GB/s}
domains:
  - {name: lab, accelerator: LabCard, num_gpus: 1, gpus_per_node: 1, intra_bandwidth: 32GB/s}
"""


def job(**more):
    model = ModelInfo.of(huggingface.model("llama-3.1-8b"))
    return ServingJob("chat", model, Demand(batch=16, prompt_tokens=300, output_tokens=100), **more)


def pipeline(tmp_path, asked, text=FLEET):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return MeasuredPipeline(load_fleet(path), asked, source="fleet.yaml")


def requests(number=80, *, rate=6.0, seed=1):
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, number))
    lengths = rng.integers(20, 600, number), rng.integers(2, 200, number)
    return [Request(float(t - at[0]), int(p), int(o)) for t, p, o in zip(at, *lengths, strict=True)]


def log_of(there, asked, came):
    """What the model says these requests take, as if it had been measured."""
    run = EngineRun(there.layout(asked), came, sequences=asked.sequences, step_tokens=asked.step_tokens)
    times = run.run()
    return Log(tuple(came), times.ttft_s, times.latency_s)
