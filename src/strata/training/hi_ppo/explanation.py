"""Why a policy took an option: the state it used, what tipped it, the runner-up, and what keeping would cost.

What tipped a decision is found by asking again: each feature of the taken option is set to the runner-up's, one
at a time, and the lead of the one over the other is measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from strata.decision import Reason
from strata.training.hi_ppo.features import CONTEXT, FEATURES, features
from strata.training.hi_ppo.policy import HiPpoPolicy
from strata.training.replan.options import HORIZONS, SPANS, Options

TOLD: Final = 5
"""Features named as what tipped a decision."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision in words and numbers.

    state: what the network saw of the taken option and of the decision, by name. tipped: by feature, how much
    of the lead over the runner-up it makes (in logits, the largest first; empty where the safe rule decided).
    keeping: what staying would have earned less (+) or more (-), by number of steps, in shares of the best
    option's value now; empty where nothing was in use.
    """

    taken: str
    runner_up: str | None
    in_use: str | None
    lead: float | None
    state: Mapping[str, float]
    tipped: Mapping[str, float]
    keeping: Mapping[str, float]
    value_ahead: Mapping[str, float]
    reasons: tuple[Reason, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "taken": self.taken,
            "runner_up": self.runner_up,
            "in_use": self.in_use,
            "lead": self.lead,
            "state": dict(self.state),
            "tipped": dict(self.tipped),
            "keeping_costs": dict(self.keeping),
            "value_ahead": dict(self.value_ahead),
            "reasons": [reason.to_dict() for reason in self.reasons],
        }


def explain(
    policy: HiPpoPolicy, options: Options, names: Sequence[str], *, pick: int, reasons: Sequence[Reason] = ()
) -> Explanation:
    """Explain the decision of the only row of `options`; `names` are those of its options."""
    assert len(options) == 1
    current = int(options.current[0])
    seen, context = features(options)
    # Values that are not finite were not used: the safe rule decided without them.
    is_finite = bool(np.isfinite(options.value[options.legal]).all())
    state: dict[str, float] = {}
    tipped: dict[str, float] = {}
    runner_up, lead = _runner_up(policy, options, pick) if is_finite else (None, None)
    if is_finite:
        state = dict(zip(FEATURES, map(float, seen[0, pick]), strict=True))
        state |= dict(zip(CONTEXT, map(float, context[0]), strict=True))
    if runner_up is not None and lead is not None and policy.session is not None:
        tipped = _tipped(policy, options, pick, runner_up, lead)
    return Explanation(
        taken=names[pick],
        runner_up=None if runner_up is None else names[runner_up],
        in_use=names[current] if current >= 0 else None,
        lead=lead,
        state=state,
        tipped=tipped,
        keeping=_keeping(options, pick) if is_finite and current >= 0 else {},
        value_ahead={
            f"in_{step}_steps": float(v) for step, v in zip(HORIZONS, options.value[0, pick], strict=True)
        }
        if is_finite
        else {},
        reasons=tuple(reasons),
    )


def _runner_up(policy: HiPpoPolicy, options: Options, pick: int) -> tuple[int | None, float | None]:
    """Return the best of the others, and the lead over it: in logits, or in value where the safe rule decides."""
    worth = options.value[0, :, 0] if policy.session is None else policy.logits(options)[0]
    others = np.where(options.legal[0], worth, -np.inf)
    others[pick] = -np.inf
    best = int(others.argmax())
    if not np.isfinite(others[best]):
        return None, None
    return best, float(worth[pick] - worth[best])


def _tipped(policy: HiPpoPolicy, options: Options, pick: int, runner_up: int, lead: float) -> dict[str, float]:
    seen, context = features(options)
    count = len(FEATURES)
    repeated = np.repeat(seen, count, axis=0)
    repeated[np.arange(count), pick, np.arange(count)] = seen[0, runner_up]
    logits = policy.scores(repeated, np.repeat(context, count, axis=0), np.repeat(options.legal, count, axis=0))
    share = lead - (logits[:, pick] - logits[:, runner_up])
    order = np.argsort(-np.abs(share), kind="stable")[:TOLD]
    return {FEATURES[k]: float(share[k]) for k in order if share[k] != 0.0}


def _keeping(options: Options, pick: int) -> dict[str, float]:
    """Return by span what the taken option is expected to earn more than staying, its switch paid."""
    best = float(np.abs(options.value[0, options.legal[0], 0]).max()) or 1.0
    gain = (options.summed_gain() - options.cost[..., None])[0, pick] / best
    return {f"over_{span}_steps": float(value) for span, value in zip(SPANS, gain, strict=True)}
