"""Whether a policy wins what the report of a fault said: recorded, reported, the policy applied, recorded again.

What a trainer achieves is its share of a CPU, since each of its rounds is so much CPU time: a wall clock would
also count what a hypervisor takes, and timers that are late.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.errors import StrataError
from strata.evaluation.noisy_neighbours import policies
from strata.evaluation.noisy_neighbours.neighbours import HOGS_PER_CPU
from strata.evaluation.noisy_neighbours.overhead import record
from strata.evaluation.noisy_neighbours.policies import NoiseScenario, PolicyMissing
from strata.evaluation.noisy_neighbours.session import applied, running, some_cpus
from strata.evaluation.noisy_neighbours.turns import Patience, turns
from strata.host.analysis.findings.finding import predicted_gain
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from strata.host.policy.step import Step
from strata.host.record import perf, tracefs
from strata.host.record.work import RecordedCommand
from strata.host.trace.events import EventKind, Trace
from strata.host.trace.read import read_trace

SECONDS: Final = 1.0
TRAINER: Final = "trainer_main"
Policy = Callable[[NoiseScenario], Iterator[Step]]

TRIALS: Final[Mapping[str, Mapping[str, Policy]]] = {
    "cpu-hogs": {
        "none": policies.nothing,
        "nice": policies.nice,
        "affinity": policies.apart,
        "fifo": policies.real_time,
    },
    "pinned-hog": {"none": policies.nothing, "unpinned": policies.unpinned},
}
"""Each fault with what is done about it, nothing first."""


@dataclass(frozen=True, slots=True)
class TrainerShares:
    """What a recording shows of the trainer: its shares of a CPU's time, and the gain that the report predicts."""

    ran: float
    waited: float
    predicted: float


@dataclass(frozen=True, slots=True)
class PolicyGain:
    """One policy against one fault: what was seen without it and with it, a pair a round; or why nothing was."""

    fault: str
    policy: str
    before: tuple[TrainerShares, ...] = ()
    after: tuple[TrainerShares, ...] = ()
    reason: str = ""

    @property
    def predicted(self) -> float | None:
        """Return the median of what the reports before said is the most to win: 1 for twice the work."""
        return statistics.median(shares.predicted for shares in self.before) if self.after else None

    @property
    def each(self) -> list[float]:
        """Return how much more work the trainer did with the policy than without, of each round."""
        return [
            after.ran / max(before.ran, 1e-9) - 1 for before, after in zip(self.before, self.after, strict=False)
        ]

    @property
    def achieved(self) -> float | None:
        """Return the median of that."""
        return statistics.median(self.each) if self.after else None

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "fault": self.fault,
            "policy": self.policy,
            "predicted": self.predicted,
            "predicted_trust": "analytic",
            "achieved": self.achieved,
            "achieved_trust": "measured",
            "achieved_low": min(self.each, default=None),
            "achieved_high": max(self.each, default=None),
            "waited_before": _median(shares.waited for shares in self.before),
            "waited_after": _median(shares.waited for shares in self.after),
            "reason": self.reason,
        }


def measure(
    rounds: int,
    *,
    patience: Patience,
    advance: Callable[[float], None] = lambda _done: None,
    trial: Callable[[str, str], TrainerShares] | None = None,
) -> tuple[PolicyGain, ...]:
    """Try each policy `rounds` times.

    trial: of a fault and a policy; by default on this kernel.
    """
    run = trial or one_trial
    pairs = {f"{fault} {policy}": (fault, policy) for fault, some in TRIALS.items() for policy in some}
    seen: dict[tuple[str, str], list[TrainerShares]] = {pair: [] for pair in pairs.values()}
    reasons: dict[tuple[str, str], str] = {}
    with patience:
        for done, name in enumerate(turns(tuple(pairs), 0 if patience.is_over else rounds)):
            pair = pairs[name]
            if pair not in reasons:
                try:
                    seen[pair].append(run(*pair))
                except (PolicyMissing, StrataError) as error:
                    reasons[pair] = str(error)
            advance((done + 1) / (rounds * len(pairs)))
    return tuple(
        PolicyGain(
            fault,
            policy,
            tuple(seen[fault, "none"]),
            tuple(seen[fault, policy][: len(seen[fault, "none"])]),
            reasons.get((fault, policy), ""),
        )
        for fault, policy in pairs.values()
        if policy != "none"
    )


def one_trial(fault: str, policy: str, *, seconds: float = SECONDS) -> TrainerShares:
    """Return what a recording of a fault under a policy shows. Raises PolicyMissing, StrataError."""
    work = _Session(fault, TRIALS[fault][policy], seconds)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.txt"
        try:
            record("perf" if perf.find() else "tracefs", work, trace, tracefs.find())
        finally:
            work.end()
        return _seen(within(read_trace(trace), work.start_ns, work.end_ns))


class _Session(RecordedCommand):
    """A fault under a policy, from when the recorder is ready; looked at between `start_ns` and `end_ns`."""

    def __init__(self, fault: str, policy: Policy, seconds: float) -> None:
        super().__init__(seconds=seconds)
        self._inject, self._policy, self._length_s = fault, policy, seconds
        self._stack = ExitStack()
        self.start_ns = self.end_ns = 0

    def start(self) -> None:
        on = some_cpus()
        pin = on[-1] if self._inject == "pinned-hog" else -1
        count = 1 if self._inject == "pinned-hog" else HOGS_PER_CPU * len(on)
        session = running(f"train {TRAINER} {pin}", [f"hog noise {pin}"] * count, on=on)
        scenario = self._stack.enter_context(session)
        self._stack.enter_context(applied(tuple(self._policy(scenario))))

    def wait(self) -> None:
        self.start_ns = time.monotonic_ns()
        time.sleep(self._length_s)
        self.end_ns = time.monotonic_ns()
        self.end()

    def end(self) -> None:
        """Take the policy back, and end the acts."""
        self._stack.close()


def within(trace: Trace, start_ns: int, end_ns: int) -> Trace:
    """Return what lies between two times, from when the trainer first comes to a CPU.

    What it waited at the start would else count as sleep: a trace does not tell since when.
    """
    events = trace.events
    trainer = [index for index, name in enumerate(trace.names.raw) if name == TRAINER.encode()]
    comes = (events.kind == EventKind.SWITCH) & np.isin(events.other_comm, trainer) & (events.time_ns >= start_ns)
    since = int(events.time_ns[comes].min(initial=end_ns))
    return replace(trace, events=events.take((events.time_ns >= since) & (events.time_ns <= end_ns)))


def _seen(trace: Trace) -> TrainerShares:
    view = TraceView(trace, critical=(TRAINER,))
    if not view.critical_tasks:
        raise StrataError("the trainer did not run while it was recorded", hint="try on a machine less busy")
    task = view.critical_tasks[0]
    cpu_wait = next((finding for finding in report_of(view).findings if finding.token == "cpu-wait"), None)
    gain = predicted_gain(cpu_wait) if cpu_wait is not None else None
    lived_ns = float(view.lived_ns[task])
    return TrainerShares(
        float(view.ran_ns[task]) / lived_ns, float(view.waited_ns[task]) / lived_ns, gain[0] if gain else 0.0
    )


def _median(values: Iterator[float]) -> float | None:
    some: Sequence[float] = list(values)
    return statistics.median(some) if some else None
