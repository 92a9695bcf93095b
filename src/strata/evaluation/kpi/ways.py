"""Ways to decide that stand beside the policy in every row about dynamics: the same loop under another rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strata.control.policies import Choose, Learned, never
from strata.training.hi_ppo.policy import HiPpoPolicy, safe_policy
from strata.training.replan import rules

OURS: Final = "hi_ppo"


@dataclass(frozen=True, slots=True)
class Way:
    """What decides between domains and inside. sees_network: whether links and speeds are measured for it."""

    choose: Choose
    inside: rules.Rule
    sees_network: bool = True


def ways(policy: HiPpoPolicy) -> dict[str, Way]:
    """Return the policy, and the three that tell what of its figure is its own.

    never: keeps its first plan. no_network_seen: the policy, to which everything looks nominal. untrained: the
    policy without what it learned.
    """
    return {
        OURS: Way(Learned(policy), policy.choose),
        "never": Way(never, rules.keep),
        "no_network_seen": Way(Learned(policy), policy.choose, sees_network=False),
        "untrained": Way(Learned(safe_policy()), rules.hysteresis()),
    }
