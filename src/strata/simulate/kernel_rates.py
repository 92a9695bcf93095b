"""What kernels reach on an accelerator: shares of its peaks, fitted to published training runs.

Method: `python benchmarks/fit_kernels.py FILE.csv` predicts the rows of a table of published runs (`strata bench
published`) and moves `SHARES` and `SUMS_FACTOR` to the least soft-L1 sum of log(predicted / published); it prints
the errors by source, and those of each source under constants fitted without it. In 16 bit four constants are
fitted, to 26 rows of dense models: Megatron-LM 2021 (arXiv 2104.04473, table 1: 5), Korthikanti et al. 2022 (arXiv
2205.05198, table 5: 4), MegaScale's Megatron-LM (arXiv 2402.15627, table 2: 4), BLOOM (1), MosaicML's MPT with
FSDP (11), torchtitan (1). In 8 bit one, to one row (Megatron-Core's Llama 3 70B). Of mixtures one, `SORT_S`, to
5 rows of 4 models (Megatron-Core's and DeepSeek's); what Megatron Bridge published of Qwen3-30B-A3B on 16 H100 in
one layout, with tokens dropped (25.09) and with none (25.11), says the same by its difference, and so does the
same model in 16 bit with the `alltoall` dispatcher and with HybridEP (45.65 and 24.71 s of 64 microbatches, 48
layers, 32,768 rows and 4 ways are 52 ns; its skills/nemo-mbridge-perf-moe-dispatcher-selection and
-expert-parallel-overlap). B200, GB200 and GB300 have one share each, fitted to dense rows in 8 bit of
benchmarks/published_runs.csv. The rest is not fitted:

* attention reaches the same share on every card of what FlashAttention-2 alone does there, forward and backward
  with a causal mask and heads of 128: 0.60 of peak on an A100, 0.33 on an H100, whose newer instructions it does
  not use (arXiv 2307.08691, §4.1). Transformer Engine comes with a later kernel: 0.5 (FlashAttention-3, arXiv
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
from strata.fleet.acu import against_its_kind
from strata.workload.software import PLAIN, Software


@dataclass(frozen=True, slots=True)
class KernelRates:
    """What the kernels of one precision reach on one device.

    matmul_flops, wide_matmul_flops: of large matrix products in the blocks, and in 16 bit where the blocks are in
    8 (embedding, head) [FLOP/s]; attention_flops: of flash attention, on the FLOPs it does; memory_bytes_per_s: of
    passes through memory; launch_s: of the host for a kernel; sort_s: of a row on its way to an expert or back;
    element_bytes: of an element in memory; cast_elements: written per operand of a product to bring it to 8 bit;
    sums_factor: what a tensor-parallel all-reduce adds to a layer, over a ring at the nominal bandwidth.
    """

    matmul_flops: float
    wide_matmul_flops: float
    attention_flops: float
    memory_bytes_per_s: float
    launch_s: float
    product_launch_s: float
    sort_s: float
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
    "A100": ReachedShares(matmul=0.725, flash_attention=0.60),
    "H100": ReachedShares(matmul=0.615, flash_attention=0.33, matmul_fp8=0.74),
    "B200": ReachedShares(matmul=0.55, flash_attention=0.33, matmul_fp8=0.55),
    "GB200": ReachedShares(matmul=0.53, flash_attention=0.33, matmul_fp8=0.53),
    "GB300": ReachedShares(matmul=0.71, flash_attention=0.33, matmul_fp8=0.71),
}
UNKNOWN: Final = ReachedShares(matmul=0.65, flash_attention=0.33)
"""Of cards no run was fitted to: assumed."""

FAMILIES: Final[Mapping[str, str]] = {
    "A100": "A100", "A800": "A100", "H100": "H100", "H800": "H100", "H200": "H100", "GH200": "H100",
    "B200": "B200", "GB200": "GB200", "B300": "GB300", "GB300": "GB300",
}  # fmt: skip
"""Cards with the same processors, by the beginning of their names."""

ATTENTION_SHARE: Final = 0.57
"""Of what flash attention does alone, in training with it: fitted."""
ATTENTION_SHARE_LATER: Final = 0.5
"""Of peak, of the kernel that Transformer Engine comes with."""

SUMS_FACTOR: Final = 1.8
"""Fitted: rings reach less than the nominal bandwidth, and kernels wait for each other around them."""
SUMS_FACTOR_HIDDEN: Final = 0.5
"""Transformer Engine hides three quarters of a sum behind the products: assumed."""

SUMS_SHOWN: Final = 0.5
"""Of a sum, where it runs behind products chunk by chunk: 70B on 256 H100 gains 9 % in 16 bit and 16 % in 8, 8B on
64 gains 10 % (pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md)."""
GATHERED_FP8: Final = 0.75
"""Of a sum's bytes, where the half of it that gathers does so in 8 bit (torchao's Float8ColwiseParallel)."""

SORT_S: Final = 60e-9
"""Of one row (a token for one of its experts) on its way to the expert, and again on its way back, beside its way
through memory and over wires: sorting by expert, and waiting until the host knows how many rows each one has."""

SORT_BANDWIDTH: Final = 3.35e12
"""Memory bandwidth that `SORT_S` is of, an H100's; the kernels that sort are bound by it [B/s]."""

LAUNCHES_FP8: Final = 3
"""Kernels of a product in 8 bit: its own and the casts of both operands."""

MEMORY_SHARE: Final = 0.8
LAUNCH_S: Final = 10e-6
CAST_ELEMENTS: Final = 1.0
"""16-bit elements: an operand in 8 bit and its transpose, written by the kernel before it (Transformer Engine)."""
CAST_ELEMENTS_APART: Final = 3.0
"""Of casts that are kernels of their own: the operand is read for its maximum and again to be cast (torchao's
scales by tensor)."""


@dataclass(frozen=True, slots=True)
class InferenceShares:
    """Shares of nominal peaks that an inference engine's kernels reach on a card.

    matmul, matmul_fp8: of matrix products over many rows; attention: of a prompt to itself, on the FLOPs it does;
    memory: of weights and KV memory that are read.
    """

    matmul: float
    matmul_fp8: float
    attention: float
    memory: float = MEMORY_SHARE

    @classmethod
    def of(cls, card: Accelerator) -> InferenceShares:
        """Return a card's shares: those of training, with an attention of 2024 that has its device to itself."""
        shares, _ = _shares(card)
        has_newer = card.peak_flops("fp8") is not None
        attention = max(shares.flash_attention, ATTENTION_SHARE_LATER if has_newer else 0.0)
        return cls(shares.matmul, shares.matmul_fp8, attention)


UNKNOWN_CARD: Final = InferenceShares(UNKNOWN.matmul, UNKNOWN.matmul_fp8, UNKNOWN.flash_attention)


def _shares(card: Accelerator) -> tuple[ReachedShares, bool]:
    """Return what a card reaches, and whether runs on its like were fitted."""
    family = FAMILIES.get(card.name.partition("-")[0])
    return (UNKNOWN, False) if family is None else (SHARES[family], True)


def kernel_rates(card: Accelerator, precision: str, software: Software = PLAIN) -> KernelRates | None:
    """Return what kernels reach on a card; None where its peak or its memory's bandwidth is not known."""
    is_fp8 = precision == "fp8"
    stated = software.transformer_engine
    is_later = is_fp8 if stated is None else stated
    peak, wide = card.peak_flops(precision), card.peak_flops("bf16" if is_fp8 else precision)
    bandwidth = card.memory_bandwidth_bytes_per_s
    if peak is None or wide is None or bandwidth is None:
        return None
    # Cards without 8 bit have no instructions that only the later kernels use.
    newer = is_later and card.peak_flops("fp8") is not None
    shares, is_fitted = _shares(card)
    speed = against_its_kind(card, "fp32" if precision == "fp32" else "fp16")
    peak, wide = peak * speed, wide * speed
    return KernelRates(
        matmul_flops=peak * (shares.matmul_fp8 if is_fp8 else shares.matmul),
        wide_matmul_flops=wide * shares.matmul,
        attention_flops=wide * (ATTENTION_SHARE_LATER if newer else shares.flash_attention * ATTENTION_SHARE),
        memory_bytes_per_s=bandwidth * MEMORY_SHARE * against_its_kind(card, "memory_bandwidth"),
        launch_s=LAUNCH_S,
        product_launch_s=LAUNCH_S * (LAUNCHES_FP8 if is_fp8 else 1),
        sort_s=SORT_S * min(1.0, SORT_BANDWIDTH / bandwidth),
        element_bytes=4.0 if precision == "fp32" else 2.0,
        cast_elements=_cast_elements(software, is_later=is_later) if is_fp8 else 0.0,
        sums_factor=SUMS_FACTOR_HIDDEN if is_later else _sums_factor(software, is_fp8=is_fp8),
        trust=Trust.CALIBRATED if is_fitted and precision != "fp32" else Trust.ASSUMED,
    )


def _cast_elements(software: Software, *, is_later: bool) -> float:
    return (CAST_ELEMENTS if is_later else CAST_ELEMENTS_APART) * (2 if software.row_scales else 1)


def _sums_factor(software: Software, *, is_fp8: bool) -> float:
    gathered = GATHERED_FP8 if is_fp8 and not software.row_scales else 1.0
    return SUMS_FACTOR * gathered * (SUMS_SHOWN if software.hides_sums else 1.0)
