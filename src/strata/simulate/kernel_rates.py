"""What kernels reach on an accelerator: shares of its peaks, fitted to published training runs.

Method: `python benchmarks/fit_kernels.py FILE.csv` predicts the rows of a table of published runs (`strata bench
published`) and moves `SHARES` and `SUMS_FACTOR` to the least soft-L1 sum of log(predicted / published); it prints
the errors by source, and those of each source under constants fitted without it. In 16 bit four constants are
fitted, to 26 rows of dense models: Megatron-LM 2021 (arXiv 2104.04473, table 1: 5), Korthikanti et al. 2022 (arXiv
2205.05198, table 5: 4), MegaScale's Megatron-LM (arXiv 2402.15627, table 2: 4), BLOOM (1), MosaicML's MPT with
FSDP (11), torchtitan (1). In 8 bit one, to one row (Megatron-Core's Llama 3 70B). The rest is not fitted:

* attention reaches the same share on every card of what FlashAttention-2 alone does there, forward and backward
  with a causal mask and heads of 128: 0.60 of peak on an A100, 0.33 on an H100, whose newer instructions it does
  not use (arXiv 2307.08691, §4.1). FP8 software comes with a later kernel: 0.5 (FlashAttention-3, arXiv
  2407.08608, §4.1).
* memory at 0.8 of its bandwidth: what FlagPerf measured on an A100 is 0.85 of nominal, without reading anything
  twice.
* 10 us of the host for each kernel of a framework that launches them one by one: assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from strata.decision import Trust
from strata.fleet.accelerator import Accelerator


@dataclass(frozen=True, slots=True)
class KernelRates:
    """What the kernels of one precision reach on one device.

    matmul_flops, wide_matmul_flops: of large matrix products in the blocks, and in 16 bit where the blocks are in
    8 (embedding, head) [FLOP/s]; attention_flops: of flash attention, on the FLOPs it does; memory_bytes_per_s: of
    passes through memory; launch_s: of the host for a kernel; element_bytes: of an element in memory;
    cast_elements: written per operand of a product to bring it to 8 bit; sums_factor: what a tensor-parallel
    all-reduce adds to a layer, over a ring at the nominal bandwidth.
    """

    matmul_flops: float
    wide_matmul_flops: float
    attention_flops: float
    memory_bytes_per_s: float
    launch_s: float
    element_bytes: float
    cast_elements: float
    sums_factor: float
    trust: Trust


@dataclass(frozen=True, slots=True)
class ReachedShares:
    """Shares of an accelerator's nominal dense peaks: of large matrix products, and of flash attention alone."""

    matmul: float
    flash_attention: float
    matmul_fp8: float = 0.6


SHARES: Final[dict[str, ReachedShares]] = {
    "A100": ReachedShares(matmul=0.716, flash_attention=0.60),
    "H100": ReachedShares(matmul=0.600, flash_attention=0.33, matmul_fp8=0.74),
}
UNKNOWN: Final = ReachedShares(matmul=0.65, flash_attention=0.33)
"""Of cards no run was fitted to: assumed."""

FAMILIES: Final[Mapping[str, str]] = {
    "A100": "A100", "A800": "A100", "H100": "H100", "H800": "H100", "H200": "H100", "GH200": "H100",
}  # fmt: skip
"""Cards with the same processors, by the beginning of their names."""

ATTENTION_SHARE: Final = 0.57
"""Of what flash attention does alone, in training with it: fitted."""
ATTENTION_SHARE_FP8: Final = 0.5
"""Of peak, of the kernel that FP8 software comes with."""

SUMS_FACTOR: Final = 1.7
"""Fitted: rings reach less than the nominal bandwidth, and kernels wait for each other around them."""
SUMS_FACTOR_FP8: Final = 0.5
"""FP8 software hides three quarters of a sum behind the products (Transformer Engine's overlap): assumed."""

MEMORY_SHARE: Final = 0.8
LAUNCH_S: Final = 10e-6
CAST_ELEMENTS: Final = 1.0
"""16-bit elements: an operand in 8 bit and its transpose."""


def kernel_rates(card: Accelerator, precision: str) -> KernelRates | None:
    """Return what kernels reach on a card; None where its peak or its memory's bandwidth is not known."""
    is_fp8 = precision == "fp8"
    peak, wide = card.peak_flops(precision), card.peak_flops("bf16" if is_fp8 else precision)
    bandwidth = card.memory_bandwidth_bytes_per_s
    if peak is None or wide is None or bandwidth is None:
        return None
    family = FAMILIES.get(card.name.partition("-")[0])
    shares = UNKNOWN if family is None else SHARES[family]
    return KernelRates(
        matmul_flops=peak * (shares.matmul_fp8 if is_fp8 else shares.matmul),
        wide_matmul_flops=wide * shares.matmul,
        attention_flops=wide * (ATTENTION_SHARE_FP8 if is_fp8 else shares.flash_attention * ATTENTION_SHARE),
        memory_bytes_per_s=bandwidth * MEMORY_SHARE,
        launch_s=LAUNCH_S,
        element_bytes=4.0 if precision == "fp32" else 2.0,
        cast_elements=CAST_ELEMENTS if is_fp8 else 0.0,
        sums_factor=SUMS_FACTOR_FP8 if is_fp8 else SUMS_FACTOR,
        trust=Trust.ASSUMED if family is None or precision == "fp32" else Trust.CALIBRATED,
    )
