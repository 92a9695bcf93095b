"""How long a trainer waits for a CPU beside noisy neighbours, under one policy after the other.

Twice as many busy loops as CPUs against a loop of 0.5 ms of work and 1.5 ms of sleep. Waits are counted by the
kernel (schedstat), so that late timers and stolen time do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata.errors import StrataError
from strata.evaluation.noisy_neighbours.policies import POLICIES, QUIET, PolicyMissing
from strata.evaluation.noisy_neighbours.session import TooSlow, applied, look, running, some_cpus
from strata.evaluation.noisy_neighbours.turns import Patience, turns

WINDOW_S: Final = 0.4
LONGEST_S: Final = 4.0
ENOUGH: Final = 60
"""Rounds of the trainer, for which a trial goes on up to LONGEST_S: on a slow machine few of them fit in."""
HOGS_PER_CPU: Final = 2


@dataclass(frozen=True, slots=True)
class NoiseTrial:
    """What one trial came to. others: share of the CPUs' time that was neither the trainer's nor the noise's."""

    wait_ms: float
    others: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyTrials:
    """One policy: every trial, in order; or why there was none."""

    policy: str
    trials: tuple[NoiseTrial, ...] = ()
    reason: str = ""

    @property
    def waits_ms(self) -> list[float]:
        """Return the wait a round of each trial."""
        return [each.wait_ms for each in self.trials]

    @property
    def median_ms(self) -> float | None:
        """Return the median of the trials."""
        return statistics.median(self.waits_ms) if self.trials else None


@dataclass(frozen=True, slots=True)
class Table:
    """All policies."""

    rows: tuple[PolicyTrials, ...]

    def of(self, policy: str) -> PolicyTrials:
        """Return a policy's row; an empty one for none."""
        return next((row for row in self.rows if row.policy == policy), PolicyTrials(policy))

    def floor(self, policy: str) -> dict[str, float] | None:
        """Return how far equal runs differ: the ratio of `policy again` to `policy`, pair by pair."""
        pairs = zip(self.of(policy).waits_ms, self.of(f"{policy} again").waits_ms, strict=False)
        ratios = [again / max(first, 1e-9) for first, again in pairs]
        if not ratios:
            return None
        return {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}

    @property
    def others(self) -> float | None:
        """Return the median share of CPU time that others had in a trial."""
        shares = [each.others for row in self.rows for each in row.trials]
        return statistics.median(shares) if shares else None

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the stable JSON form."""
        quiet = self.of("quiet").median_ms
        return [
            {
                "policy": row.policy,
                "wait_ms_mean": (median := row.median_ms),
                "ratio_to_quiet": median / quiet if median is not None and quiet else None,
                "wait_ms_low": min(row.waits_ms, default=None),
                "wait_ms_high": max(row.waits_ms, default=None),
                "trials": len(row.trials),
                "trust": "measured" if row.trials else None,
                "reason": row.reason,
            }
            for row in self.rows
        ]


def measure(
    rounds: int,
    *,
    patience: Patience,
    advance: Callable[[float], None] = lambda _done: None,
    trial: Callable[[str], NoiseTrial] | None = None,
    policies: Sequence[str] = tuple(POLICIES),
) -> Table:
    """Try every policy `rounds` times. One that is not to be had here is tried once, and its row says why.

    A trial that took too long is left out.

    trial: runs one policy; by default on this kernel.
    """
    run = trial or one_trial
    trials: dict[str, list[NoiseTrial]] = {name: [] for name in policies}
    reasons: dict[str, str] = {}
    late: dict[str, str] = {}
    with patience:
        for done, name in enumerate(turns(policies, 0 if patience.is_over else rounds)):
            if name not in reasons:
                try:
                    trials[name].append(run(name))
                except (PolicyMissing, StrataError) as error:
                    reasons[name] = str(error)
                except TooSlow as error:
                    late[name] = str(error)
            advance((done + 1) / (rounds * len(policies)))
    return Table(
        tuple(_row(name, trials[name], reasons.get(name) or late.get(name, "not tried")) for name in policies)
    )


def _row(name: str, trials: Sequence[NoiseTrial], why_none: str) -> PolicyTrials:
    return PolicyTrials(name, tuple(trials), "" if trials else why_none)


def one_trial(policy: str, *, window_s: float = WINDOW_S) -> NoiseTrial:
    """Return what a policy comes to on this kernel.

    Raises PolicyMissing or StrataError for one that cannot be had here, TooSlow.
    """
    on = some_cpus()
    noise = [] if policy in QUIET else ["hog noise -1"] * (HOGS_PER_CPU * len(on))
    with running("rounds trainer -1", noise, on=on) as scenario, applied(tuple(POLICIES[policy](scenario))):
        time.sleep(window_s / 5)
        before = after = look(scenario)
        until_s = time.monotonic() + LONGEST_S
        while after is before or (after.rounds - before.rounds < ENOUGH and time.monotonic() < until_s):
            time.sleep(window_s)
            after = look(scenario)
    wait_ms = 1e3 * (after.wait_s - before.wait_s) / max(after.rounds - before.rounds, 1)
    busy_s = after.busy_s - before.busy_s
    return NoiseTrial(wait_ms, max(0.0, 1 - (after.ours_s - before.ours_s) / max(busy_s, 1e-9)))
