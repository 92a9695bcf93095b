"""Vendors' resource names: how a pod counts devices that was written for one vendor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from strata.cluster.kinds import Object

_WHOLE: Final[Mapping[str, str]] = {
    "NVIDIA": r"nvidia\.com/gpu",
    "Huawei": r"huawei\.com/(?:Ascend[0-9]+[A-Za-z0-9]*|npu)",
    "Cambricon": r"cambricon\.com/mlu[0-9]*",
    "Hygon": r"hygon\.com/dcu",
    "Moore Threads": r"mthreads\.com/gpu",
    "AMD": r"amd\.com/gpu",
    "Iluvatar": r"iluvatar\.(?:ai|com)/gpu",
    "Kunlunxin": r"kunlunxin\.com/xpu",
    "MetaX": r"metax-tech\.com/gpu",
}
"""Resources that count whole devices, by the catalogue's vendors."""
_OURS: Final = re.compile(
    r"(?:nvidia\.com/(?:gpu|mig-)|huawei\.com/(?:Ascend|npu)|cambricon\.com/|hygon\.com/dcu|mthreads\.com/"
    r"|amd\.com/gpu|iluvatar\.(?:ai|com)/|kunlunxin\.com/|metax-tech\.com/|volcano\.sh/v(?:gpu|npu)"
    r"|gpu\.intel\.com/|enflame\.com/|birentech\.com/).*"
)
"""Accelerators in any vendor's words, parts of devices too; not the NICs that some of them have plugins for."""


class Counted(NamedTuple):
    """What a container asks of a vendor's device plugin. where: the container; `spec.` path."""

    where: str
    container: str
    resource: str
    amount: str


def is_accelerator(resource: str) -> bool:
    """Return whether a resource is a vendor's accelerators, or parts of them."""
    return _OURS.fullmatch(resource) is not None


def vendor_of(resource: str) -> str:
    """Return whose whole devices a resource counts; empty where it counts none."""
    return next((vendor for vendor, form in _WHOLE.items() if re.fullmatch(form, resource)), "")


def counted(pod: Object) -> Iterator[Counted]:
    """Yield what a pod's containers ask of vendors' device plugins; amounts of none are left out."""
    spec = pod.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            resources = container.get("resources") or {}
            asked: dict[str, Any] = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            for resource, amount in asked.items():
                if is_accelerator(resource) and str(amount) != "0":
                    yield Counted(f"spec.{kind}[{number}]", str(container.get("name")), resource, str(amount))
