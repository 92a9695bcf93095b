"""Keep the plan in use or switch: the rules that `--policy` names, on one job's outlook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

import numpy as np

from strata.arrays import Bools
from strata.control.outlook import Outlook
from strata.decision import Reason
from strata.training.hi_ppo.policy import HiPpoPolicy, load_policy
from strata.training.replan import rules


class PolicyName(StrEnum):
    """What decides.

    never: the first plan. hysteresis: where a step is faster now by half the switch's cost. exact: the largest
    expected gain over the outlook, the switch paid. hi-ppo: the learned policy, held to what futures tell.
    """

    HI_PPO = "hi-ppo"
    EXACT = "exact"
    HYSTERESIS = "hysteresis"
    NEVER = "never"


Choose = Callable[[Outlook, Bools], int]
"""The index of a plan, -1 where none is legal: of an outlook and of which plans [P] may be taken now."""

SLACK: Final = 0.02
"""Of what the futures tell, in decisions at the best rate: within it the learned policy chooses."""


def choose_by(name: PolicyName) -> Choose:
    """Return a rule by its name. For hi-ppo the bundled policy is loaded once.

    Raises MissingPart without onnxruntime.
    """
    if name is PolicyName.HI_PPO:
        return Learned(_bundled())
    return {PolicyName.EXACT: exact, PolicyName.HYSTERESIS: hysteresis, PolicyName.NEVER: never}[name]


def inside_by(name: PolicyName) -> rules.Rule:
    """Return what a rule of this name does inside a domain; exact has no figures of its own there.

    Raises MissingPart as `choose_by`.
    """
    if name is PolicyName.HI_PPO:
        return _bundled().choose
    return rules.keep if name is PolicyName.NEVER else rules.hysteresis()


def exact(outlook: Outlook, legal: Bools) -> int:
    """The plan of the largest expected gain, a tie keeps the one in use."""
    gain = np.where(legal, outlook.gain, -np.inf)
    pick = int(gain.argmax())
    if outlook.current >= 0 and legal[outlook.current] and gain[outlook.current] >= gain[pick]:
        return outlook.current
    return pick if gain[pick] > -np.inf else -1


def hysteresis(outlook: Outlook, legal: Bools) -> int:
    """Faster now by half of what the switch costs (`rules.hysteresis`)."""
    return _by_rule(rules.hysteresis(), outlook, legal)


def never(outlook: Outlook, legal: Bools) -> int:
    """The plan in use, as long as it can run."""
    return _by_rule(rules.keep, outlook, legal)


@dataclass(frozen=True, eq=False)
class Learned:
    """Hi-PPO's inter-domain agent on the outlook, held to what would come of its pick (`rollouts`).

    What a fixed margin would do is left only where that is surely worth more; its pick is taken where it is worth
    as much as the best. What a plan takes from other jobs on its links counts as if this one lost it.
    """

    policy: HiPpoPolicy

    def __call__(self, outlook: Outlook, legal: Bools) -> int:
        """Return the index of a plan, as `Choose`."""
        outlook = outlook.together()
        margin = hysteresis(outlook, legal)
        if margin < 0 or outlook.current < 0:
            return exact(outlook, legal)
        worth = outlook.rollouts.surely(outlook.current, legal, base=margin)
        best, pick = int(worth.argmax()), int(self._among(outlook).choose(outlook.options(legal))[0])
        return pick if worth[pick] >= worth[best] - SLACK else best

    def notes(self, outlook: Outlook) -> tuple[Reason, ...]:
        """Return why the safe rule stands in for the network, where it does."""
        return () if outlook.current < 0 else self._among(outlook).notes

    def _among(self, outlook: Outlook) -> HiPpoPolicy:
        return self.policy.among(1 if outlook.beside() is None else 2)


def _by_rule(rule: rules.Rule, outlook: Outlook, legal: Bools) -> int:
    options = outlook.options(legal)
    return int(rule(options)[0]) if options.legal.any() else -1


@cache
def _bundled() -> HiPpoPolicy:
    return load_policy()
