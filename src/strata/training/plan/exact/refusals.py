"""Why pipelines over some domains were not built, and of which domains that holds in every setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from strata.decision import Reason
from strata.training.plan.exact.branches import SearchBranches


class Refusals:
    """The branches that were refused, and the first reason of each set of domains."""

    def __init__(self, branches: SearchBranches) -> None:
        self.branches, self._codes = branches, set[int]()
        self._reasons: dict[frozenset[str], Reason] = {}

    def add(self, code: int, reason: Reason) -> None:
        """Keep why a branch was refused."""
        self._codes.add(code)
        self._reasons.setdefault(self.branches.names(code % len(self.branches.chains.masks)), reason)

    def proved(self, *, is_late: Callable[[], bool]) -> dict[frozenset[str], Reason]:
        """Return them without those of sets that another setting might fit: these were outbid, not impossible."""
        branches, chains = self.branches, self.branches.chains
        if not self._codes:
            return {}
        bounded, refused = (
            np.bincount(each[each >= 0] % len(chains.masks), minlength=len(chains.masks))
            for each in (branches.codes, np.array(sorted(self._codes)))
        )
        in_doubt = np.flatnonzero((refused > 0) & (bounded <= refused))
        for numbers in branches.left(("alone", "joined")).values():
            for number in numbers:
                if is_late() or not len(in_doubt):
                    break
                might = np.isfinite(chains.bounds(branches.problem.configs[number], in_doubt).step_s[in_doubt])
                in_doubt = in_doubt[~might]
        certain = {branches.names(int(index)) for index in in_doubt}
        reasons = {names: reason for names, reason in self._reasons.items() if names in certain}
        for names, reason in [(names, reason) for names, reason in reasons.items() if len(names) == 1]:
            [name] = names
            for other in branches.like(name):
                reasons[frozenset([other])] = replace(reason, subject=other) if reason.subject == name else reason
        return reasons
