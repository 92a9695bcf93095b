"""What software ran a published row, as far as its source, its name and its model tell."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from strata.evaluation.published_benchmarks.published_run import PublishedRun
from strata.workload.software import PLAIN, ExpertActivation, Software

_BEFORE_FLASH_ATTENTION: Final = ("megatron21", "korth22", "bloom", "zero")
"""Beginnings of sources whose software wrote the attention scores to memory (flash attention is of May 2022, arXiv
2205.14135) and under ZeRO-3 fetched weights when they were needed (PyTorch's FSDP is of March 2022)."""

_OF_MEGATRON_LM: Final = {
    "megatron": Software(hides_gradients=False),
    "korth": Software(hides_gradients=False, hides_backward_sums=True),
    "bloom": Software(hides_gradients=False, wide_gradients=True),
    "megascale": Software(hides_gradients=False, hides_backward_sums=True, wide_gradients=True),
}
"""Megatron-LM from 2021 to 2023, by source. Copies exchange after the last backward (`--overlap-grad-reduce` is of
late 2023, and off unless asked for); with bf16 gradients are in 32 bit (fp16 in the first two). Since 2022 sums of
the backward run behind gradients of weights (recalled: arXiv 2205.05198 §6.2, recomputing costs 39 %, not 33)."""

_TRAINER: Final = "transformers"
"""Source whose rows `benchmarks/gpu_training.py` measured: PyTorch without its compiler, unless the name says
"compile", and gradients in 32 bit, since weights are."""

_WITHOUT_TRANSFORMER_ENGINE: Final = ("mosaic", "torchtitan", _TRAINER)
_WITH_TRANSFORMER_ENGINE: Final = ("megatron-core", "megatron-bridge", "nemo", "nvidia")
"""Beginnings of sources whose software multiplied in 8 bit within PyTorch, with its attention, or that is made of
Transformer Engine in 16 bit too. Of others the precision decides."""

_DUAL_PIPE: Final = "deepseek"
"""Source whose software ran what experts exchange beside another microbatch's work (arXiv 2412.19437 §3.2.1) and
sends a token once to each node (§3.2.2)."""

_ASYNC: Final = re.compile(r"\basync(hronous)?[- ]?(tp\b|tensor)", re.I)
"""In a row's name or note: sums of tensor parallelism ran behind products."""


def software_of(run: PublishedRun) -> Software:
    """Return what ran a row, as far as its source tells."""
    source = run.source.casefold()
    if source.startswith(_BEFORE_FLASH_ATTENTION):
        return replace(
            _OF_MEGATRON_LM.get(source.rstrip("0123456789"), PLAIN), fused_attention=False, prefetched_shards=False
        )
    if (megatron := _OF_MEGATRON_LM.get(source)) is not None:
        return megatron
    if source.startswith(_WITH_TRANSFORMER_ENGINE):
        return _megatron(run)
    is_dual, is_titan, is_trainer = map(source.startswith, (_DUAL_PIPE, "torchtitan", _TRAINER))
    return Software(
        transformer_engine=False if source.startswith(_WITHOUT_TRANSFORMER_ENGINE) else None,
        # MPT has flash-attention's loss (`fused_crossentropy`); torchtitan has compiled its own since 2025.
        fused_loss=source.startswith("mosaic") or (is_titan and run.accelerator.name.startswith("H200")),
        fused_norms=not ((is_titan and _is_eager(run)) or (is_trainer and "compile" not in run.name.casefold())),
        hides_sums=_ASYNC.search(f"{run.name} {run.note}") is not None,
        row_scales="rowwise" in run.name.casefold() + run.note.casefold(),
        wide_gradients=is_trainer or (is_titan and run.pipeline_parallel > 1),
        drops_tokens=run.drops_tokens,
        hides_exchanges=is_dual,
        sorts_apart=not is_dual,
    )


def _is_eager(run: PublishedRun) -> bool:
    """Whether a row of torchtitan ran without its compiler: those on H100 in 16 bit and in one dimension that do
    not say "compile" (benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3)."""
    alone = run.tensor_parallel * run.pipeline_parallel * run.context_parallel == 1
    return (
        alone
        and run.precision == "bf16"
        and run.accelerator.name.startswith("H100")
        and "compile" not in f"{run.name} {run.note}".casefold()
    )


def _megatron(run: PublishedRun) -> Software:
    """Return what a release of Megatron-Core ran a mixture with, by the recipes of NVIDIA's Megatron Bridge.

    Its tags v0.2.0 to v0.6.0 (scripts/performance/configs, src/megatron/bridge/perf_recipes) say which dispatcher
    (`moe_flex_dispatcher_backend`), whether exchanges overlap (`moe_a2a_overlap`), whether a step is one graph
    (`cuda_graph_impl`). A row without a release is taken as of one of 2025. gpt-oss has experts with
    biases and clamps, whose activation function was many kernels before.
    """
    release = run.release or "25"
    name, card = run.spec.name.casefold(), run.accelerator.name.partition("-")[0]
    is_rack, is_oss = card.startswith("GB"), "gpt-oss" in re.sub(r"[ _]", "-", run.name.casefold())
    is_large, is_latent = name == "qwen3-235b-a22b", run.spec.latent is not None
    one_graph = release >= "26.06" and (is_rack or (card == "B300" and not (is_oss or is_latent)))
    flex = (
        is_oss  # whose provider sorts within one kernel, whoever sends
        or (is_rack and release >= "25.11")
        or (is_latent and (card == "H100" or release >= "26"))
        or (card == "B300" and release >= ("26.04" if is_large else "26"))
        or (release >= "26.02.01" and not is_large)
    )
    activation: ExpertActivation = "in_products" if one_graph else "fused"
    if is_oss:
        activation = "fused" if one_graph else "unfused"
    return Software(
        transformer_engine=True,
        drops_tokens=run.drops_tokens,
        hides_exchanges=is_large and card == "H100" and not run.drops_tokens,
        sorts_apart=not flex,
        expert_activation=activation,
        cuda_graphs=one_graph,
        row_scales=run.block_scales,
    )
