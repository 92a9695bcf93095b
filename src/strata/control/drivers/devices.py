"""Which devices of a machine a part's ranks see, so that several jobs share a domain and no device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

VARIABLES: Final = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "HIP_VISIBLE_DEVICES",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
}
"""By vendor, what its runtime reads."""

STRATA_DEVICES: Final = "STRATA_DEVICES"
"""Set for every vendor: the numbers of a node's devices in the domain, in the order of LOCAL_RANK."""


def free(num_devices: int, count: int, *, taken: Collection[int], wanted: Sequence[int] = ()) -> list[int] | None:
    """Return the `wanted` devices where nobody has them, else the `count` lowest; None: there are not so many."""
    is_free = len(wanted) == count and not set(wanted) & set(taken) and max(wanted, default=0) < num_devices
    if is_free:
        return list(wanted)
    result = list(islice((device for device in range(num_devices) if device not in taken), count))
    return result if len(result) == count else None


def visible(
    environments: Mapping[int, Mapping[str, str]], nodes: Sequence[Sequence[int]], devices: Sequence[int], *,
    vendor: str, ours: Mapping[str, str],
) -> list[dict[str, str]]:  # fmt: skip
    """Return the environments of ranks with the devices of their node, one device a rank in the order of nodes.

    nodes: the ranks of each. ours: the scheduler's own environment; where it sees some devices only, `devices`
    number those.
    """
    variable, left = VARIABLES.get(vendor.lower()), iter(devices)
    names = [name.strip() for name in ours.get(variable or "", "").split(",") if name.strip()]
    result = []
    for node in nodes:
        own = list(islice(left, len(node)))
        for position, rank in enumerate(node):
            seen = {STRATA_DEVICES: ",".join(map(str, own)), "LOCAL_RANK": str(position)}
            if variable:
                seen[variable] = ",".join(names[n] if n < len(names) else str(n) for n in own)
            result.append({**environments[rank], **seen})
    return result
