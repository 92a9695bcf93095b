"""What the software of a run does that neither its layout nor its precision says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

ExpertActivation = Literal["unfused", "fused", "in_products"]


@dataclass(frozen=True, slots=True)
class Software:
    """The training software, as far as it decides how long a step takes.

    fused_attention: attention is one kernel that keeps no scores (flash attention, arXiv 2205.14135).
    prefetched_shards: ZeRO-3 fetches a layer's weights while it works on another, all at once (FSDP, arXiv
        2304.11277 §3.3), not each matrix when it is needed (DeepSpeed of 2021).
    transformer_engine: attention by the kernels of 2024, that use what newer cards have for it, and sums of tensor
        parallelism behind the products (NVIDIA's Transformer Engine, Megatron-Core); None: where products are in
        8 bit. PyTorch alone has neither, in 8 bit either.
    drops_tokens: an expert takes a fixed number of tokens and leaves the rest out (GShard, arXiv 2006.16668 §2.2),
        so that nothing is sorted into rows of unknown number.
    hides_exchanges: what experts exchange runs beside another microbatch's work (DualPipe, arXiv 2412.19437
        §3.2.1; Megatron-Core's `--overlap-moe-expert-parallel-comm`), rows on their way there in 8 bit where
        products are (§3.3).
    sorts_apart: rows are sorted by expert in kernels of their own, and each is sent by itself (Megatron-Core's
        `alltoall` dispatcher); else by what sends them, once to each node (its `flex` one: DeepEP, HybridEP).
    expert_activation: the activation function of experts is many kernels, one, or a part of their products, which
        then read rows where they came in.
    cuda_graphs: a whole step is launched at once, so that no kernel waits for the host (Megatron-Core's
        `--cuda-graph-impl full_iteration`).
    fused_loss: the loss is one kernel that writes the logits' gradient in their place (flash-attention's, or one
        that a compiler makes).
    fused_norms: norms, rotations and activation functions are a kernel each, written so or made by a compiler.
    hides_sums: sums of tensor parallelism run behind the products that they are between (PyTorch's asynchronous
        tensor parallelism), as Transformer Engine's do.
    hides_backward_sums: sums of tensor parallelism run behind gradients of weights, in the backward alone
        (Megatron-LM of 2022 and later, NeMo since its #4084).
    hides_gradients: sums of gradients run behind the last backward, new weights are gathered behind the first
        forward (`--overlap-grad-reduce`, `--overlap-param-gather`); else both take their own time.
    row_scales: operands in 8 bit have scales for rows or pieces of them (torchao's `rowwise`, MXFP8), so each is
        cast twice, by rows and by columns, and torchao gathers it in 16 bit.
    wide_gradients: gradients are kept in 32 bit from the first microbatch to the last (FSDP where pipelines wait
        with summing them; Megatron-LM without `--grad-reduce-in-bf16`).
    """

    fused_attention: bool = True
    prefetched_shards: bool = True
    transformer_engine: bool | None = None
    drops_tokens: bool = False
    hides_exchanges: bool = False
    sorts_apart: bool = True
    expert_activation: ExpertActivation = "fused"
    cuda_graphs: bool = False
    fused_loss: bool = False
    fused_norms: bool = True
    hides_sums: bool = False
    hides_backward_sums: bool = False
    hides_gradients: bool = True
    wide_gradients: bool = False
    row_scales: bool = False


PLAIN: Final = Software()
"""What is assumed where nothing is known of the software."""
