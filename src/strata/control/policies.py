"""Keep the plan in use or switch: the rules that `--policy` names, on one job's outlook."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Final

import numpy as np

from strata.arrays import Bools
from strata.control.outlook import Leader, Outlook
from strata.training.hi_ppo.policy import HiPpoPolicy, load_policy
from strata.training.replan import rules


class PolicyName(StrEnum):
    """What decides.

    never: the first plan. hysteresis: where a step is faster now by half the switch's cost. exact: the largest
    expected gain over the outlook, the switch paid. hi-ppo: the learned policy, held to the exact figures.
    """

    HI_PPO = "hi-ppo"
    EXACT = "exact"
    HYSTERESIS = "hysteresis"
    NEVER = "never"


Choose = Callable[[Outlook, Bools], int]
"""The index of a plan, -1 where none is legal: of an outlook and of which plans [P] may be taken now."""

YIELD: Final = 0.5
"""Share of the exact rule's expected gain that the learned policy's pick must have, else that rule's is taken."""

TOLD: Final = 10.0
"""What a plan must be worth more in the long run, in standard deviations of noise, for the past to decide."""


def choose_by(name: PolicyName) -> Choose:
    """Return a rule by its name. For hi-ppo the bundled policy is loaded once.

    Raises MissingPart without onnxruntime.
    """
    if name is PolicyName.HI_PPO:
        return learned(_bundled())
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


def learned(policy: HiPpoPolicy) -> Choose:
    """Return Hi-PPO's inter-domain agent on the outlook, unless a fixed margin would have earned clearly more.

    Its pick is taken where the exact figures see little loss in it. Where what followed states like this one tells
    clearly more than any noise that another plan is worth more, that one is.
    """

    def follow(outlook: Outlook, legal: Bools) -> int:
        if outlook.current >= 0 and legal[outlook.current] and outlook.leader is Leader.MARGIN:
            return hysteresis(outlook, legal)
        best = exact(outlook, legal)
        if best < 0 or outlook.current < 0:
            return best
        pick = int(policy.choose(outlook.options(legal))[0])
        gains = outlook.gain
        return pick if gains[pick] >= YIELD * gains[best] and gains[pick] >= 0 else best

    def choose(outlook: Outlook, legal: Bools) -> int:
        pick = follow(outlook, legal)
        if pick < 0 or outlook.current < 0 or not outlook.analogs.tells:
            return pick
        worth = np.where(legal & np.isfinite(outlook.cost), outlook.analogs.worth(outlook.current), -np.inf)
        best = int(worth.argmax())
        return best if worth[best] > worth[pick] + TOLD * outlook.analogs.noise else pick

    return choose


def _by_rule(rule: rules.Rule, outlook: Outlook, legal: Bools) -> int:
    options = outlook.options(legal)
    return int(rule(options)[0]) if options.legal.any() else -1


@cache
def _bundled() -> HiPpoPolicy:
    return load_policy()
