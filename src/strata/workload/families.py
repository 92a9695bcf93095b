"""What a model type has that its config.json does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

Mixture = Literal["", "mixtral", "qwen", "deepseek", "llama4"]
"""How a config says which layers have experts, and how wide these are."""

Sliding = Literal["", "all", "even", "five-of-six", "upper", "chunks"]
"""Which blocks slide a window where `layer_types` does not say: none, all, every second from the first on, all but
every `sliding_window_pattern`-th, those from `max_window_layers` on; Llama 4's chunks, but for every fourth."""


@dataclass(frozen=True, slots=True)
class Family:
    """What a model type has that its config.json does not say.

    tied: shared embeddings where `tie_word_embeddings` is absent, as in the family's configuration class.
    mha: there are no key-value heads to state. kv_follows, head_follows: `num_key_value_heads` may be absent and
    is then the number of heads; `head_dim` may be absent and is then hidden size / heads.
    mlp_factor: `intermediate_size` may be absent and is then this multiple of the hidden size.
    norms_per_layer: one where attention and MLP stand side by side. layer_norm: with bias, not RMSNorm.
    qk_norm: of each head's queries and keys; wide_qk_norm: of all heads' together (OLMoE).
    """

    tied: bool | None = False
    mha: bool = False
    kv_follows: bool = False
    head_follows: bool = True
    mlp_factor: int | None = None
    learned_positions: bool = False
    position_offset: int = 0
    norms_per_layer: int = 2
    layer_norm: bool = False
    embedding_norm: bool = False
    qk_norm: bool = False
    wide_qk_norm: bool = False
    gated_mlp: bool = True
    mlp_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    head_bias: bool = False
    attention_sinks: bool = False
    experts: Mixture = ""
    expert_bias: bool = False
    window: Sliding = ""


_GPT2: Final = Family(tied=True, mha=True, gated_mlp=False, layer_norm=True, mlp_bias=True, mlp_factor=4,
                      learned_positions=True, qkv_bias=True, output_bias=True)  # fmt: skip
_QWEN: Final = Family(qkv_bias=True, window="upper")
_DEEPSEEK: Final = Family(mha=True, experts="deepseek")
_GEMMA: Final = Family(tied=True, head_follows=False)

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(kv_follows=True),
    "mistral": Family(window="all"),
    "mixtral": Family(experts="mixtral", window="all"),
    "qwen2": _QWEN,
    "qwen2_moe": replace(_QWEN, experts="qwen"),
    "qwen3": replace(_QWEN, qkv_bias=False, head_follows=False, qk_norm=True),
    "qwen3_moe": Family(head_follows=False, qk_norm=True, experts="qwen", window="all"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms_per_layer=4, window="even"),
    "gemma3_text": replace(_GEMMA, norms_per_layer=4, qk_norm=True, window="five-of-six"),
    "phi": replace(_GPT2, tied=False, mha=False, kv_follows=True, mlp_factor=None, learned_positions=False,
                   norms_per_layer=1, head_bias=True),
    "phi3": Family(kv_follows=True, window="all"),
    "gpt2": _GPT2,
    "gpt_neo": replace(_GPT2, qkv_bias=False),
    "gpt_neox": replace(_GPT2, tied=False, mlp_factor=None, learned_positions=False),
    "gptj": replace(_GPT2, tied=False, learned_positions=False, norms_per_layer=1, qkv_bias=False,
                    output_bias=False, head_bias=True),
    "gpt_oss": Family(head_follows=False, attention_sinks=True, experts="mixtral", expert_bias=True,
                      window="even"),
    # OPT's table starts two rows early, a leftover of fairseq's padding.
    "opt": replace(_GPT2, mlp_factor=None, position_offset=2),
    "bloom": replace(_GPT2, learned_positions=False, embedding_norm=True),
    "falcon": replace(_GPT2, learned_positions=False),
    "olmoe": Family(wide_qk_norm=True, experts="mixtral"),
    "llama4_text": Family(experts="llama4", window="chunks"),
}  # fmt: skip
"""Of `falcon` the config says more (`huggingface.falcon`)."""
