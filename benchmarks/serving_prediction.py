"""`strata serve simulate` against a live gateway and worker of this machine, on the same arrivals.

    python benchmarks/serving_prediction.py [--rate 1.5] [--requests 40] [--blocks 6] [--hidden 256] [--seed 0]

Blocks of Poisson arrivals, of as many requests each, take turns: those with even numbers are calibrated from
(`strata serve calibrate`), those with odd ones compared, so that a machine whose load drifts is as busy in both.
Times are those of the client; what other work takes of the processors is in them, so blocks also say the load
average and what a token took of a processor. Prints JSON: p50 and p95 of the odd blocks, measured and predicted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import httpx
import numpy as np

from strata.evaluation.bench.gateway import cpu_s
from strata.serving.live.config import SchedulerConfig
from strata.serving.measured.ask import ask
from strata.serving.measured.fit import fit
from strata.serving.measured.log import Log
from strata.serving.node import Node
from strata.serving.observe import layout_of
from strata.serving.planning.allocation import Stage
from strata.serving.replay.setup import replay_job
from strata.serving.worker.shape import Shape
from strata.workload.requests import CONVERSATION, Length, Lengths, arrivals, requests
from strata.workload.serving_job import Demand, ServingJob

CARD = "this CPU"
MEMORY_BYTES = 512e6
STEP_TOKENS = 128
"""Tokens of a prompt that a worker reads in a step."""
APART_S = 1000.0
"""Between blocks in the log that is fitted: a pipeline is idle by then."""
START_S = 120.0
AT = (50, 95)


@contextmanager
def serving(shape: Shape):
    """Yield the address of a gateway with a worker, and the process numbers of both."""
    model = ["--layers", str(shape.num_layers), "--hidden", str(shape.hidden_size)]
    command, processes = [sys.executable, "-m", "strata", "serve"], []
    try:
        gateway = [*command, "gateway", "--port", "0", *model]
        processes.append(subprocess.Popen(gateway, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        url = processes[0].stdout.readline().strip().removeprefix("gateway listens at ")
        worker = [*command, "worker", "--gateway", url, "--id", "n0", "--memory", f"{MEMORY_BYTES:.0f}B", *model]
        quiet = {"stdout": subprocess.DEVNULL, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
        processes.append(subprocess.Popen(worker, **quiet))
        end = time.monotonic() + START_S
        while httpx.get(f"{url}/healthz").status_code != httpx.codes.OK:
            if time.monotonic() > end:
                raise SystemExit("the worker did not start")
            time.sleep(0.5)
        yield url, [process.pid for process in processes]
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(60)


def block(demand: Demand, number: int, *, count: int, seed: int):
    rng = np.random.default_rng([seed, number])
    lengths = Lengths(
        Length.around(demand.prompt_tokens, like=CONVERSATION.prompt),
        Length.around(demand.output_tokens, like=CONVERSATION.output),
    )
    stream = requests(rng, arrivals(rng, demand.rate_per_s), lengths)
    most = 900
    return [
        r._replace(prompt_tokens=min(r.prompt_tokens, most), output_tokens=min(r.output_tokens, most))
        for r, _ in zip(stream, range(count), strict=False)
    ]


def rows(log: Log, after_s: float):
    for request, ttft_s, latency_s in zip(log.requests, log.ttft_s, log.latency_s, strict=True):
        yield request.at_s + after_s, request.prompt_tokens, request.output_tokens, ttft_s, latency_s


def simulated(node: Node, job: ServingJob, log: Log):
    """Return what `strata serve simulate` foretells of a block's requests."""
    end_s = log.requests[-1].at_s + 1e-3
    config = SchedulerConfig(allocation_strategy="auto", routing_strategy="auto")
    replay, _ = replay_job([node], job, log.requests, config=config, start_s=0.0, end_s=end_s)
    replay.run()
    replay.close()
    record = replay.record
    return {name: np.array(getattr(record, name)) for name in ("ttft_s", "tpot_s", "latency_s")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rate", type=float, default=1.5)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from strata.serving.worker.hardware import measure  # needs torch

    shape = Shape(num_layers=12, hidden_size=options.hidden)
    demand = Demand(batch=8, prompt_tokens=128, output_tokens=64, rate_per_s=options.rate)
    job = ServingJob("blocks", shape.hosted.info, demand, memory_headroom=0.0, step_tokens=STEP_TOKENS)
    hardware = measure("cpu", MEMORY_BYTES)
    rates = hardware.compute_capability, hardware.memory_bytes, hardware.memory_bandwidth_bytes_per_s
    node = Node("n0", *rates, accelerator=CARD)
    logs, blocks = list[Log](), []
    with serving(shape) as (url, pids):
        for number in range(-1, options.blocks):
            came = block(demand, number % 1000, count=options.requests, seed=options.seed)
            before_s = [cpu_s(pid) for pid in pids]
            answers = asyncio.run(ask(url, came, seed=number % 1000))
            spent_s = sum(cpu_s(pid) for pid in pids) - sum(before_s)
            if number < 0:
                continue  # warm
            logs.append(answers.log)
            blocks.append(
                {
                    "block": number,
                    "errors": answers.errors,
                    "load_average": os.getloadavg()[0],
                    "cpu_ms_per_token": 1e3 * spent_s / answers.log.output_tokens.sum(),
                    "tpot_p50_s": float(np.nanmedian(
                        (answers.log.latency_s - answers.log.ttft_s) / np.maximum(answers.log.output_tokens - 1, 1)
                    )),
                }
            )  # fmt: skip
    used, compared = logs[::2], logs[1::2]
    # The fit takes the first half, so blocks have to be equally long; an answer may end before its first token.
    count = min(len(log.requests) for log in logs)
    whole = Log.of(
        [row for i, log in enumerate([*used, *compared]) for row in islice(rows(log, i * APART_S), count)]
    )
    stages = (Stage("n0", 0, shape.num_layers),)

    def layout(asked: ServingJob):
        return layout_of([node], (stages,), asked.model, demand, derating=asked.derating, has_curves=True)

    fitted = fit(job, whole, CARD, layout)
    calibrated = replace(job, calibration={CARD: fitted.ratios})
    there = {"ttft_s": [], "tpot_s": [], "latency_s": []}
    predicted_s = {name: [] for name in there}
    for log in compared:
        for name, values in simulated(node, calibrated, log).items():
            predicted_s[name] += values.tolist()
        there["ttft_s"] += log.ttft_s.tolist()
        there["latency_s"] += log.latency_s.tolist()
        there["tpot_s"] += ((log.latency_s - log.ttft_s) / np.maximum(log.output_tokens - 1, 1)).tolist()
    figures = {}
    for name, values in there.items():
        measured, predicted = (np.percentile(of, AT) for of in (values, predicted_s[name]))
        figures[name] = {
            f"p{q}": {"measured": m, "predicted": p, "error": p / m - 1}
            for q, m, p in zip(AT, measured.tolist(), predicted.tolist(), strict=True)
        }
    print(json.dumps({"ratios": fitted.ratios._asdict(), "blocks": blocks, "compared": figures}, indent=2))


if __name__ == "__main__":
    main()
