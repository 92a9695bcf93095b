"""How the planner scales on one core: CPU seconds to the first plan and to the end, the gap, and the step time.

    python benchmarks/planner_scale.py [--limit SECONDS] [--seeds N] [--only WORD]

Fleets are made up with fixed seeds: A100 and H100, every pair of domains linked. `mesh` has links of 10 to 100
Gbps that slow down with distance; `ten` is ten domains of 8 to 1024 GPUs over links of 1 to 40 Gbps and 2 to
90 ms, any pair of both; in `small` no domain of eight GPUs holds the model. Time limits are of CPU time, so that
what else runs on the machine does not count; rows are of the search alone, without baselines.
"""

from __future__ import annotations

import os

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"  # before NumPy is loaded

import argparse  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import replace  # noqa: E402

import numpy as np  # noqa: E402

from strata.fleet.catalogue import accelerator  # noqa: E402
from strata.fleet.fleet import Fleet  # noqa: E402
from strata.fleet.synthetic import random_fleet  # noqa: E402
from strata.training.plan.planner import plan_training  # noqa: E402
from strata.workload.schema import load_job  # noqa: E402

CARDS = (accelerator("A100-SXM4-80GB"), accelerator("H100-SXM5-80GB"))
JOBS = ("llama-3.1-8b", "llama-3.1-70b")
MESHES = ((16, 256), (32, 256), (64, 64), (64, 1024), (200, 256), (1000, 64))


def mesh(count: int, devices: int, seed: int) -> Fleet:
    fleet = random_fleet(count, CARDS, np.random.default_rng(seed), devices=devices)
    links = {
        pair: replace(link, bandwidth_bytes_per_s=10 * link.bandwidth_bytes_per_s)
        for pair, link in fleet.links.items()
    }
    return replace(fleet, name=f"mesh {count} x {devices}", links=links)


def ten(seed: int) -> Fleet:
    rng = np.random.default_rng(seed)
    fleet = random_fleet(10, CARDS, rng)
    domains = tuple(replace(d, num_devices=8 * 2 ** int(rng.integers(8))) for d in fleet.domains)
    links = {
        pair: replace(
            link,
            bandwidth_bytes_per_s=float(rng.uniform(1, 40)) * 1e9 / 8,
            latency_s=float(rng.uniform(2e-3, 90e-3)),
        )
        for pair, link in fleet.links.items()
    }
    return replace(fleet, name=f"ten, seed {seed}", domains=domains, links=links)


def small(count: int, seed: int) -> Fleet:
    fleet = mesh(count, 64, seed)
    return replace(
        fleet, name=f"small {count} x 8", domains=tuple(replace(d, num_devices=8) for d in fleet.domains)
    )


def cases(seeds: int) -> Iterator[tuple[Fleet, str]]:
    for job in JOBS:
        yield from ((ten(seed), job) for seed in range(seeds))
    for count, devices in MESHES:
        yield from ((mesh(count, devices, 0), job) for job in JOBS)
    yield from ((small(count, 0), JOBS[1]) for count in (64, 200))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--seeds", type=int, default=5, help="fleets of ten domains for each job")
    parser.add_argument("--only", default="", help="cases whose name holds this word")
    options = parser.parse_args()
    print(f"{'fleet':<18} {'job':<14} {'first s':>8} {'end s':>8} {'gap':>8} {'step s':>9}  plan", flush=True)
    for fleet, job in cases(options.seeds):
        if options.only not in f"{fleet.name}, {job}":
            continue
        started = time.process_time()
        for limit_s in (0.0, 1.0):  # without time there is a plan where one domain alone holds the model
            if plan_training(fleet, load_job(job), clock=time.process_time, time_limit_s=limit_s).best:
                break
        first_s, started = time.process_time() - started, time.process_time()
        result = plan_training(fleet, load_job(job), clock=time.process_time, time_limit_s=options.limit)
        end_s, best = time.process_time() - started, result.best
        figures = f"{result.search.gap:>8.2%} {best.report.step_time_s:>9.3f}" if best else f"{'-':>8} {'-':>9}"
        name = f"{best.plan.kind} over {len(best.plan.domains)}" if best else "none"
        print(f"{fleet.name:<18} {job:<14} {first_s:>8.2f} {end_s:>8.2f} {figures}  {name}", flush=True)


if __name__ == "__main__":
    main()
