"""`strata bench simulate`: how many plans a second the cost model answers, beside published figures."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any, Final

import click

from strata.cli.output import emit, output_option, rows

# Plans a second of the same forms in NumPy on one core, as found when the formulas were worked out; a span
# (0.7-5.5 M) stands for all closed forms, its upper end is the peer.
_PEER_PLANS_PER_S: Final = {("recurrence", 4): 46e3, ("recurrence", 8): 8e3, ("closed form", 0): 5.5e6}

_SIZES: Final = ((4, 32), (8, 64))
_MIN_CPU_S: Final = 0.2


@click.command()
@click.option("--plans", type=click.IntRange(min=1), default=20_000, show_default=True, help="Plans in a batch.")
@output_option
def simulate(plans: int, output: str) -> None:
    """Measure plans per second of process CPU time, on one thread, for NumPy and (if installed) torch."""
    measured = [
        _row(backend, name, stages, microbatches, plans)
        for backend in _backends()
        for name in ("recurrence", "closed form")
        for stages, microbatches in _SIZES
    ]
    emit({"rows": measured}, output, lambda console: console.print(_table(measured)))


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
    import numpy as np

    from strata.simulate.pipeline import StageTimes, classic_warmup, recurrence_s
    from strata.simulate.screening import one_f_one_b_s

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
    work()  # the first call pays for imports and page faults
    repeats, start = 0, time.process_time()
    while (elapsed := time.process_time() - start) < _MIN_CPU_S:
        work()
        repeats += 1
    return repeats * plans / elapsed


def _table(measured: list[dict[str, Any]]) -> Any:
    return rows(
        ("form", "backend", "S", "M", "plans/s", "peer", "ratio"),
        (
            (
                row["name"], row["backend"], str(row["stages"]), str(row["microbatches"]),
                f"{row['plans_per_s']:,.0f}", f"{row['peer_plans_per_s']:,.0f}", f"{row['ratio']:.2f}",
            )
            for row in measured
        ),
        right=range(2, 7),
    )  # fmt: skip
