"""NVML, NVIDIA's library of management, through `nvidia-ml-py`: started, or not here."""

from __future__ import annotations

import importlib
from typing import Any


def load() -> Any | None:
    """Import and start NVML; None where the library or the driver is not here."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, or none that is loaded
        return None
    return nvml
