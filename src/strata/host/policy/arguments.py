"""What scx_layered must be started with for a policy to work."""

from __future__ import annotations

from collections.abc import Sequence

from strata.host.policy.policy import Layer


def arguments(layers: Sequence[Layer], *, num_nodes: int) -> tuple[str, ...]:
    """Return the arguments a policy needs before `f:FILE`, on a machine of so many NUMA nodes.

    Without them a policy that asks who used a GPU ends the scheduler. Hints also need --task-hint-map PATH, where
    those who write hints look for it, which the policy does not say.
    """
    kinds = {match.kind for layer in layers for block in layer.matches for match in block}
    if not kinds & {"UsedGpuTid", "UsedGpuPid"}:
        return ()
    return ("--enable-gpu-support", "--enable-gpu-affinitize") if num_nodes > 1 else ("--enable-gpu-support",)
