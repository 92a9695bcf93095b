"""Inner shapes of pipelines: how many devices hold a stage, how large a microbatch is, what is recomputed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strata.workload.job import ContextExchange, Recompute

RARE_CAPS: Final = (2, 4)
"""Caps left out of the settings tried for the first plan."""


@dataclass(frozen=True, slots=True)
class CommonConfig:
    """What all pipelines of a plan have in common."""

    microbatch_size: int
    recompute: Recompute
    context_exchange: ContextExchange = ContextExchange.RING
    expert_parallel: int = 1
    holds_outer: bool = False
    """DiLoCo's outer state lies beside the others: gradients are exchanged after several steps."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """The inner shape all stages of a pipeline share.

    `data_parallel` is the degree inside the domains: a domain with room for n stages contributes
    min(n // data_parallel, cap) of them to each copy. The rest is as in `Stage` and `TrainingPlan`.
    """

    microbatch_size: int
    tensor_parallel: int
    data_parallel: int
    cap: int
    recompute: Recompute
    context_parallel: int = 1
    context_exchange: ContextExchange = ContextExchange.RING
    expert_parallel: int = 1
    holds_outer: bool = False

    @property
    def common(self) -> CommonConfig:
        """What other pipelines of the same plan must have, too."""
        how = self.context_exchange, self.expert_parallel, self.holds_outer
        return CommonConfig(self.microbatch_size, self.recompute, *how)

    @property
    def copies(self) -> tuple[int, int, int]:
        """What sums between copies depend on, beside a stage's devices."""
        return self.data_parallel, self.context_parallel, self.expert_parallel

    @property
    def work(self) -> tuple[int, int, int, Recompute, ContextExchange, int]:
        """What the time of a layer depends on."""
        return (
            self.tensor_parallel, self.context_parallel, self.microbatch_size, self.recompute,
            self.context_exchange, self.expert_parallel,
        )  # fmt: skip

    @property
    def uncapped(self) -> tuple[object, ...]:
        """All but `cap`: what is the same where it does not bind."""
        return (self.data_parallel, self.holds_outer, *self.work)

    def of_size(self, microbatch_size: int, *, data_parallel: int | None = None) -> ParallelConfig:
        """Return the same for other microbatches, in as many copies or in others.

        A search makes thousands: `dataclasses.replace` takes twice as long.
        """
        return ParallelConfig(
            microbatch_size, self.tensor_parallel, data_parallel or self.data_parallel, self.cap, self.recompute,
            self.context_parallel, self.context_exchange, self.expert_parallel, self.holds_outer,
        )  # fmt: skip

    @property
    def is_common(self) -> bool:
        """Whether this is tried for the first plan: microbatches of powers of two, whole sequences."""
        size = self.microbatch_size
        return self.context_parallel == 1 and self.cap not in RARE_CAPS and not size & (size - 1)
