"""Plans a second of the cost model, and events a second of the event backend."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from strata.fleet.schema import load_fleet
from strata.simulate.analytic import StepModel
from strata.simulate.events.run import simulate as run
from strata.simulate.events.work import Conditions, Job
from strata.simulate.pipeline import StageTimes, classic_warmup, recurrence_s
from strata.simulate.screening import one_f_one_b_s
from strata.tables import Shown, rows
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import load_job

# Plans a second of the same forms in NumPy on one core, as found when the formulas were worked out; a span
# (0.7-5.5 M) stands for all closed forms, its upper end is the peer.
_PEER_PLANS_PER_S: Final = {("recurrence", 4): 46e3, ("recurrence", 8): 8e3, ("closed form", 0): 5.5e6}

# CPU time of ASTRA-sim for one LLM step of 32 ranks: 0.04-0.07 s. Its trace has an operation a layer (5120
# in all), ours one a stage.
_ASTRA_STEP_S: Final = 0.05

_SIZES: Final = ((4, 32), (8, 64))
_MIN_CPU_S: Final = 0.2


def measure(plans: int) -> dict[str, Any]:
    """Time batches of `plans` plans on every array backend that is installed, then one step of an LLM."""
    rates = [
        _row(backend, name, stages, microbatches, plans)
        for backend in _backends()
        for name in ("recurrence", "closed form")
        for stages, microbatches in _SIZES
    ]
    events = [_events("LLM step", jitter=0.0), _events("LLM step, 32 ranks with jitter", jitter=0.05)]
    return {"rows": rates, "events": events}


def _backends() -> list[str]:
    return ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]


def _row(backend: str, name: str, stages: int, microbatches: int, plans: int) -> dict[str, Any]:
    rate = _plans_per_s(_work(backend, name, stages, microbatches, plans), plans)
    peer = _PEER_PLANS_PER_S.get((name, stages)) or _PEER_PLANS_PER_S[name, 0]
    return {
        "name": name,
        "backend": backend,
        "stages": stages,
        "microbatches": microbatches,
        "plans_per_s": rate,
        "peer_plans_per_s": peer,
        "ratio": rate / peer,
    }


def _work(backend: str, name: str, stages: int, microbatches: int, plans: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    arrays: list[Any] = [rng.uniform(0.1, 2, (plans, stages)) for _ in range(2)]
    arrays += [rng.uniform(0, 3, (plans, stages - 1)) for _ in range(2)]
    warmup: Any = np.array(classic_warmup(stages))
    if backend == "torch":
        import torch

        torch.set_num_threads(1)
        arrays, warmup = [torch.from_numpy(array) for array in arrays], torch.from_numpy(warmup)
    times = StageTimes(*arrays)
    answer = recurrence_s if name == "recurrence" else one_f_one_b_s
    return lambda: answer(times, microbatches, warmup)


def _plans_per_s(work: Callable[[], Any], plans: int) -> float:
    return plans / _seconds(work)


def _seconds(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Return the mean time of one call."""
    work()  # the first call pays for imports and page faults
    repeats, elapsed, start = 0, 0.0, clock()
    while repeats == 0 or elapsed < _MIN_CPU_S:
        work()
        repeats, elapsed = repeats + 1, clock() - start
    return elapsed / repeats


def _events(name: str, *, jitter: float) -> dict[str, Any]:
    # Llama 3.1 8B: 32 layers between an embedding and a head.
    domains, cuts = ("Virginia", "Virginia", "London", "London"), (0, 9, 17, 25, 34)
    stages = tuple(
        Stage(domain, cuts[i], cuts[i + 1] - cuts[i], 1, warmup)
        for i, (domain, warmup) in enumerate(zip(domains, classic_warmup(4), strict=True))
    )
    plan = TrainingPlan((Pipeline(stages, 8, 8),), 1)
    job = Job("step", StepModel(load_fleet("aws10"), load_job("llama-3.1-8b")), plan)

    def work() -> int:
        return run([job], rng=np.random.default_rng(0), conditions=Conditions(jitter)).num_events

    num_events, wall_s = work(), _seconds(work, time.perf_counter)
    return {"name": name, "events_per_s": num_events / wall_s, "wall_s": wall_s, "peer_s": _ASTRA_STEP_S}


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    yield _rates_table(data["rows"])
    yield ""
    yield _events_table(data["events"])


def _rates_table(rates: list[dict[str, Any]]) -> Any:
    return rows(
        ("form", "backend", "S", "M", "plans/s", "peer", "ratio"),
        (
            (
                row["name"], row["backend"], str(row["stages"]), str(row["microbatches"]),
                f"{row['plans_per_s']:,.0f}", f"{row['peer_plans_per_s']:,.0f}", f"{row['ratio']:.2f}"
            )
            for row in rates
        ),
        right=range(2, 7)
    )  # fmt: skip


def _events_table(events: list[dict[str, Any]]) -> Any:
    return rows(
        ("events backend", "events/s", "wall", "ASTRA-sim"),
        (
            (
                row["name"],
                f"{row['events_per_s']:,.0f}",
                f"{row['wall_s'] * 1e3:.1f}ms",
                f"{row['peer_s'] * 1e3:.0f}ms",
            )
            for row in events
        ),
        right=range(1, 4),
    )
