"""Bytes of a stored number, and the share of memory left free: the same for training and serving."""

from __future__ import annotations

from typing import Final

ELEMENT_BYTES: Final = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128, "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}  # fmt: skip
"""int4 with a 16-bit scale for every 128 (GPTQ's and AWQ's usual group), MXFP4 with an 8-bit one for every 32 (OCP
Microscaling Formats 1.0, §5.1; gpt-oss), NVFP4 with an 8-bit one for every 16."""

MEMORY_HEADROOM: Final = 0.08
"""Share of a device's memory left free: fragmentation, and what no formula counts. Assumed."""

PRODUCT_INPUT_BYTES: Final = {"fp8": 1.0}
"""Of an element that matrix products keep of what they read, where they do so in their own width."""
