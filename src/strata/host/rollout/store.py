"""Roll-outs in SQLite: the log of decisions (`strata.history`), one kind a roll-out, folded when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from strata.errors import UsageError
from strata.history import History, default_path
from strata.host.rollout.rollout import Arm, Attempt, Rollout, RolloutPlan, Rules, rollout_of

MAX_EVENTS: Final = 1_000_000


@contextmanager
def opened(path: Path, *, is_new: bool = False) -> Iterator[Store]:
    """Yield the roll-outs of a file; one that is not there is made only if it `is_new`. Raises UsageError."""
    if not is_new and not path.exists():
        raise UsageError(f"{path}: there is no such file", hint="strata host rollout init NAME")
    with History(path, max_rows=MAX_EVENTS) as log:
        yield Store(log)


class Store:
    """The roll-outs of one log. Made by `opened`."""

    def __init__(self, log: History) -> None:
        self._log = log

    def get(self, name: str) -> Rollout:
        """Return a roll-out. Raises UsageError where there is none of that name."""
        rollout = self._find(name)
        if rollout is None:
            raise UsageError(
                f"{self._log.path}: no roll-out is called {name!r}", hint=f"strata host rollout init {name}"
            )
        return rollout

    def names(self) -> dict[str, float]:
        """Return the names of all roll-outs, and when each was last written, newest first."""
        return {kind.removeprefix(_kind("")): at_s for kind, at_s in self._log.kinds().items()}

    def init(self, plan: RolloutPlan, rules: Rules, *, at_s: float) -> None:
        """Begin a roll-out. Raises UsageError where the name is taken: its record would mix with another's."""
        plan.check()
        if self._find(plan.name) is not None:
            raise UsageError(f"a roll-out is called {plan.name!r} already", hint="another name, or `change`")
        self._write(plan.name, {"event": "init", "plan": asdict(plan), "rules": asdict(rules)}, at_s)

    def change(self, rollout: Rollout, rules: Rules, *, is_stopped: bool, at_s: float) -> None:
        """Replace the rules, or stop. A stopped roll-out stays so."""
        event = {"event": "change", "rules": asdict(rules), "is_stopped": is_stopped}
        self._write(rollout.plan.name, event, at_s)

    def assign(self, rollout: Rollout, job: str, number: int, policy: Arm, *, at_s: float) -> Arm:
        """Keep what an attempt is told to run under; returns it, which another host may have settled meanwhile."""
        if (job, number) in rollout.assigned:
            return policy
        event = {"event": "assigned", "job": job, "number": number, "policy": str(policy)}
        self._write(rollout.plan.name, event, at_s)
        return self.get(rollout.plan.name).assigned[job, number]

    def add(self, rollout: Rollout, attempt: Attempt, *, at_s: float) -> bool:
        """Record an attempt; returns whether it is new. Raises UsageError if it is there with other figures."""
        known = rollout.find(*attempt.key)
        if known == attempt:
            return False
        if known is not None:
            raise UsageError(
                f"attempt {attempt.number} of {attempt.job} is recorded already, with {_shown(known)}, not "
                f"{_shown(attempt)}"
            )
        self._write(rollout.plan.name, {"event": "attempt", "attempt": asdict(attempt)}, at_s)
        return True

    def _find(self, name: str) -> Rollout | None:
        entries = self._log.latest(_kind(name), MAX_EVENTS)
        return rollout_of(entry.decision for entry in reversed(entries))

    def _write(self, name: str, event: Mapping[str, Any], at_s: float) -> None:
        self._log.add(_kind(name), event, at_s=at_s)


def state_path(environment: Mapping[str, str]) -> Path:
    """Return where roll-outs are kept: beside the history."""
    return default_path(environment).with_name("rollouts.db")


def _kind(name: str) -> str:
    return f"rollout:{name}"


def _shown(attempt: Attempt) -> str:
    value = "a failure" if attempt.value is None else f"{attempt.value:g}"
    return f"{value} under {attempt.policy} in {attempt.config!r} on {attempt.devices} devices"
