"""What policies keep of a job along made-up traces: noise, regimes, outages, waves, in the control loop.

    python benchmarks/replay_families.py [FLEET] [JOB] [--seeds N] [--first N] [--decisions N] [--only WORD]

Each family is drawn with fixed seeds, from --first on, a row every 300 s; both directions of a pair share a state
but in `noise` and `outages each way`. Columns: what is kept of nominal in percent, mean over seeds, of
`strata replay`'s rules; then the least by which the policy is above (+) or below (-) the better of `never` and
`hysteresis` on one trace.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from strata.arrays import Floats
from strata.control.candidates import Candidates
from strata.control.core import Scheduler
from strata.control.policies import PolicyName, choose_by
from strata.control.replay import ENDLESS, clairvoyant, run, trace_s
from strata.control.state import JobSpec
from strata.fleet.dynamics.noise import Diurnal, OrnsteinUhlenbeck, Uniform
from strata.fleet.dynamics.process import Process, Product
from strata.fleet.dynamics.regimes import Regimes, outage, precursor
from strata.fleet.dynamics.replay import Replay
from strata.fleet.fleet import Fleet
from strata.fleet.schema import load_fleet
from strata.workload.schema import load_job

INTERVAL_S = 300.0
RULES = ("hi-ppo", "never", "hysteresis", "exact", "clairvoyant")


def regimes(stay: float) -> Regimes:
    return Regimes.with_persistence(stay, step_s=INTERVAL_S)


def waves(amplitude: float, hours: float) -> Callable[[np.random.Generator, int], Process[Any]]:
    return lambda rng, count: Diurnal(amplitude, hours * 3600, tuple(rng.uniform(0, 2 * np.pi, count).tolist()))


def fixed(process: Process[Any]) -> Callable[[np.random.Generator, int], Process[Any]]:
    return lambda _rng, _count: process


EACH_WAY = {"noise", "outages each way"}
FAMILIES = {
    "noise": fixed(Uniform(0.3)),
    "regimes 80%": fixed(regimes(0.8)),
    "regimes 90%": fixed(regimes(0.9)),
    "regimes 97%": fixed(regimes(0.97)),
    "regimes 95%, noise 10%": fixed(Product((regimes(0.95), Uniform(0.1)))),
    "announced": fixed(precursor()),
    "outages 6h/30min": fixed(outage(up_s=21600, down_s=1800)),
    "outages 2h/20min": fixed(outage(up_s=7200, down_s=1200)),
    "outages each way": fixed(outage(up_s=7200, down_s=1200)),
    "outages of domains": fixed(outage(up_s=14400, down_s=3600)),
    "waves 40%, a day": waves(0.4, 24),
    "waves 80%, a day": waves(0.8, 24),
    "waves 70%, 6 h": waves(0.7, 6),
    "drift": fixed(OrnsteinUhlenbeck(0.5, 3600.0)),
}


def drawn(fleet: Fleet, family: str, seed: int, *, rows: int) -> Floats:
    """Return factors [rows, L]."""
    pairs = list(fleet.links)
    domains = [domain.name for domain in fleet.domains]
    if family == "outages of domains":
        columns = [(domains.index(a), domains.index(b)) for a, b in pairs]
    else:
        keys = pairs if family in EACH_WAY else sorted({tuple(sorted(pair)) for pair in pairs})
        columns = [(i, i) for i in (keys.index(p if family in EACH_WAY else tuple(sorted(p))) for p in pairs)]
    count = 1 + max(max(column) for column in columns)
    rng = np.random.default_rng([seed, *family.encode()])
    process = FAMILIES[family](rng, count)
    state, factors = process.reset(rng, (count,)), []
    for _ in range(rows):
        factors.append(process.factor(state))
        state = process.step(state, INTERVAL_S, rng)
    first, second = np.array(columns).T
    return np.minimum(np.array(factors)[:, first], np.array(factors)[:, second])


def kept(candidates: Candidates, trace: Replay) -> Iterator[float]:
    """Yield the percentage each of RULES keeps."""
    duration_s = trace_s(trace, INTERVAL_S)
    candidates.prepare([tuple(row) for row in trace.factors.tolist()])
    for rule in RULES:
        is_rule = rule != "clairvoyant"
        choose = choose_by(PolicyName(rule)) if is_rule else clairvoyant(candidates, trace, interval_s=INTERVAL_S)
        scheduler = Scheduler(choose, lambda _fleet, _job: candidates, INTERVAL_S)
        spec = JobSpec("job", candidates.job, ENDLESS)
        result = run(candidates.fleet, [spec], scheduler, trace=trace, end_s=duration_s)
        yield 100 * result.trained["job"] / (float(candidates.nominal.max()) * duration_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fleet", nargs="?", default="seed")
    parser.add_argument("job", nargs="?", default="llama-3.1-8b")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--decisions", type=int, default=144)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    fleet = load_fleet(asked.fleet)
    candidates = Candidates.of(fleet, load_job(asked.job))
    print(f"| {asked.fleet}, {asked.job} | {' | '.join(RULES)} | least on a trace |")
    print("|---" * (len(RULES) + 2) + "|")
    times = np.arange(asked.decisions) * INTERVAL_S
    least: list[float] = []
    for family in FAMILIES:
        if asked.only not in family:
            continue
        traces = [
            drawn(fleet, family, seed, rows=asked.decisions)
            for seed in range(asked.first, asked.first + asked.seeds)
        ]
        table = np.array([list(kept(candidates, Replay(times, trace))) for trace in traces])
        above = table[:, 0] - table[:, 1:3].max(axis=1)
        least += above.tolist()
        means = " | ".join(f"{value:.2f}" for value in table.mean(axis=0))
        print(f"| {family} | {means} | {above.min():+.2f} |", flush=True)
    below = sum(value < -1 for value in least)
    print(f"\n{below} of {len(least)} traces are more than a point below the better of never and hysteresis.")


if __name__ == "__main__":
    main()
