"""What device plugins of Kubernetes call accelerators, vendor by vendor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

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
    "Google": r"google\.com/tpu",
    "Amazon": r"aws\.amazon\.com/neuron(?:device)?",
}
"""Resources that count whole devices, by the catalogue's vendors."""
_ACCELERATORS: Final = re.compile(
    r"(?:nvidia\.com/(?:gpu|mig-)|huawei\.com/(?:Ascend|npu)|cambricon\.com/|hygon\.com/dcu|mthreads\.com/"
    r"|amd\.com/gpu|iluvatar\.(?:ai|com)/|kunlunxin\.com/|metax-tech\.com/|volcano\.sh/v(?:gpu|npu)"
    r"|google\.com/tpu|aws\.amazon\.com/neuron|gpu\.intel\.com/|enflame\.com/|birentech\.com/).*"
)
"""Accelerators in any vendor's words, parts of devices too; not the NICs that some of them have plugins for."""

_USUAL: Final = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Huawei": "huawei.com/Ascend910",
    "Hygon": "hygon.com/dcu",
    "Moore Threads": "mthreads.com/gpu",
    "Kunlunxin": "kunlunxin.com/xpu",
    "MetaX": "metax-tech.com/gpu",
    "Google": "google.com/tpu",
    "Amazon": "aws.amazon.com/neuron",
}
"""The name to ask for, of vendors whose plugin has one for the cards that train; others' differ by version."""


def is_accelerator(resource: str) -> bool:
    """Return whether a resource is a vendor's accelerators, or parts of them."""
    return _ACCELERATORS.fullmatch(resource) is not None


@lru_cache(1024)
def vendor_of(resource: str) -> str:
    """Return whose whole devices a resource counts; empty where it counts none."""
    return next((vendor for vendor, form in _WHOLE.items() if re.fullmatch(form, resource)), "")


def usual_resource(vendor: str) -> str | None:
    """Return the resource that counts whole training cards of a vendor; None where it is not known."""
    return _USUAL.get(vendor)
