"""A plan judged by ASTRA-sim: lowered, checked, run and read; and its backends side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strata.decision import Reason, Trust
from strata.errors import StrataError
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import AstraBackend, Binaries
from strata.simulate.astra.files import Scenario
from strata.simulate.astra.lower import Aggregation, Lowered, Refused, lower
from strata.simulate.astra.lower_ns3 import lower_ns3
from strata.simulate.astra.ns3 import Ns3Network
from strata.simulate.astra.run import run, self_check
from strata.simulate.astra.validate import check_scenario, check_traces
from strata.workload.plan import TrainingPlan

TIME_LIMIT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class AstraResult:
    """One step of a plan as ASTRA-sim sees it.

    ranks: what each rank is (a stage of a copy); finish_s, exposed_s: when it ended, and how long of that it did
    not compute (None where the binary is too old to say). notes: what was simplified, a sentence each.
    """

    step_s: float
    backend: AstraBackend
    ranks: tuple[str, ...]
    finish_s: tuple[float, ...]
    exposed_s: tuple[float | None, ...]
    wall_s: float
    notes: tuple[str, ...]
    trust: Trust

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        ranks = zip(self.ranks, self.finish_s, self.exposed_s, strict=True)
        return {
            "step_time_s": self.step_s,
            "backend": f"astra-{self.backend}",
            "trust": str(self.trust),
            "wall_s": self.wall_s,
            "notes": list(self.notes),
            "ranks": [{"name": name, "finish_s": end, "exposed_s": bare} for name, end, bare in ranks],
        }


def simulate_astra(
    model: StepModel,
    plan: TrainingPlan,
    *,
    binaries: Binaries,
    environment: Mapping[str, str],
    backend: AstraBackend | None = None,
    aggregation: Aggregation | None = None,
    links_vary: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    keep: Path | None = None,
) -> AstraResult:
    """Return what ASTRA-sim says of one step; `backend` None takes the analytical one that fits.

    binaries: of `discover.find(environment)`; environment: where the self-check is remembered. keep: a folder
    for the files of the run, which is else removed.
    Raises Refused where the answer would be silently wrong, MissingPart without a binary, StrataError where it
    hangs, fails or does not finish.
    """
    lowered: Lowered[Scenario] | Lowered[Ns3Network]
    if backend is AstraBackend.NS3:
        lowered = lower_ns3(model, plan, aggregation=aggregation, links_vary=links_vary)
        check_traces(lowered.scenario.traces, lowered.scenario.groups)
    else:
        lowered = lower(model, plan, backend=backend, aggregation=aggregation, links_vary=links_vary)
        check_scenario(lowered.scenario, is_aware=lowered.backend is AstraBackend.AWARE)
    binary = binaries.of(lowered.backend)
    self_check(binary, lowered.backend, environment)
    answer = run(binary, lowered.scenario, time_limit_s=time_limit_s, keep=keep)
    busy = [rank for rank, label in enumerate(lowered.labels) if label]
    exposed_ns = [answer.exposed_ns[rank] for rank in busy]
    return AstraResult(
        step_s=max(answer.finish_ns[rank] for rank in busy) / 1e9,
        backend=lowered.backend,
        ranks=tuple(lowered.labels[rank] for rank in busy),
        finish_s=tuple(answer.finish_ns[rank] / 1e9 for rank in busy),
        exposed_s=tuple(None if value is None else value / 1e9 for value in exposed_ns),
        wall_s=answer.wall_s,
        notes=lowered.notes,
        trust=model.reports([plan])[0].trust,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one backend said, or why it said nothing. `message` is a sentence, `reasons` its tokens."""

    backend: AstraBackend
    result: AstraResult | None
    message: str = ""
    reasons: tuple[Reason, ...] = ()


def compare(
    model: StepModel,
    plan: TrainingPlan,
    *,
    binaries: Binaries,
    environment: Mapping[str, str],
    aggregation: Aggregation | None = None,
    links_vary: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    keep: Path | None = None,
) -> list[Comparison]:
    """Return what each backend says, unaware and aware, and ns-3 where its binary is given.

    A backend that refuses, is missing or fails is a row that says so. keep: a folder for the files and logs of
    all runs, one folder a backend.
    """
    comparisons = []
    for backend in (AstraBackend.UNAWARE, AstraBackend.AWARE, *([AstraBackend.NS3] if binaries.ns3 else [])):
        try:
            result = simulate_astra(
                model, plan, binaries=binaries, environment=environment, backend=backend,
                aggregation=aggregation, links_vary=links_vary, time_limit_s=time_limit_s,
                keep=keep / backend.value if keep else None,
            )  # fmt: skip
        except Refused as error:
            comparisons.append(Comparison(backend, None, str(error), error.reasons))
        except StrataError as error:
            comparisons.append(Comparison(backend, None, str(error)))
        else:
            comparisons.append(Comparison(backend, result))
    return comparisons


def ranks_csv(results: Iterable[AstraResult]) -> str:
    """Return one line a rank: backend, what it is, its finish and its exposed communication [s]."""
    rows = [
        (result.backend, name, end, bare)
        for result in results
        for name, end, bare in zip(result.ranks, result.finish_s, result.exposed_s, strict=True)
    ]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([("backend", "rank", "finish_s", "exposed_s"), *rows])
    return stream.getvalue()
