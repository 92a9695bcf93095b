"""What a model type has that its config.json does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

Mixture = Literal[
    "", "mixtral", "hunyuan", "qwen", "deepseek", "ernie", "llama4", "gemma4", "step", "nemotron", "longcat"
]
"""How a config says which layers have experts, and how wide these are (`mixtures.py`)."""

Sliding = Literal["", "all", "even", "three-of-four", "last-three-of-four", "five-of-six", "upper", "chunks"]
"""Which blocks slide a window where `layer_types` does not say: none, all, every second from the first on, all but
every `sliding_window_pattern`-th, all but the first of every four, those from `max_window_layers` on; Llama 4's
chunks, but for every fourth."""


Linear = Literal["", "gated-delta", "kimi-delta", "lightning", "mamba2"]
"""Linear attention of some blocks (`linear_attention.py`)."""


@dataclass(frozen=True, slots=True)
class Family:
    """What a model type has that its config.json does not say.

    tied: shared embeddings where `tie_word_embeddings` is absent, as in the family's configuration class.
    mha: there are no key-value heads to state. kv_follows, head_follows: `num_key_value_heads` may be absent and
    is then the number of heads; `head_dim` may be absent and is then hidden size / heads.
    mlp_factor: `intermediate_size` may be absent and is then this multiple of the hidden size.
    latent: multi-head latent attention. index: a small attention beside it chooses which tokens to look at
    (DeepSeek-V3.2, arXiv 2512.02556 §2.1).
    norms_per_layer: one where attention and MLP stand side by side. layer_norm: with bias, not RMSNorm.
    norm_params: OLMo's norms have none.
    qk_norm: of each head's queries and keys; wide_qk_norm: of all heads' together (OLMoE). qk_norm_key: a flag in
    the config that decides whether these hold.
    gated_attention, gated_heads: the output of attention is gated, by a gate as wide or by one number a head.
    value_heads: `v_head_dim` says how wide a value is. linear: blocks may be of this linear
    attention: `layer_types`.
    biases_output: `attention_bias` gives the output projection one, too. bias_key: a flag that gives every
    projection one.
    """

    tied: bool | None = False
    mha: bool = False
    latent: bool = False
    index: bool = False
    kv_follows: bool = False
    head_follows: bool = True
    mlp_factor: int | None = None
    learned_positions: bool = False
    position_offset: int = 0
    norms_per_layer: int = 2
    layer_norm: bool = False
    norm_params: bool = True
    embedding_norm: bool = False
    qk_norm: bool = False
    qk_norm_key: str = ""
    wide_qk_norm: bool = False
    gated_mlp: bool = True
    mlp_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    biases_output: bool = True
    bias_key: str = ""
    head_bias: bool = False
    attention_sinks: bool = False
    gated_attention: bool = False
    gated_heads: bool = False
    value_heads: bool = False
    linear: Linear = ""
    experts: Mixture = ""
    expert_bias: bool = False
    window: Sliding = ""


_GPT2: Final = Family(tied=True, mha=True, gated_mlp=False, layer_norm=True, mlp_bias=True, mlp_factor=4,
                      learned_positions=True, qkv_bias=True, output_bias=True)  # fmt: skip
_QWEN: Final = Family(qkv_bias=True, window="upper")
_QWEN3_NEXT: Final = Family(head_follows=False, qk_norm=True, gated_attention=True, linear="gated-delta")
_DEEPSEEK: Final = Family(mha=True, latent=True, experts="deepseek")
_OLMO: Final = Family(kv_follows=True, wide_qk_norm=True)
_GRANITE_SWA: Final = Family(kv_follows=True, attention_sinks=True, window="last-three-of-four")
_MINIMAX: Final = Family(kv_follows=True, linear="lightning", experts="mixtral")
_GEMMA: Final = Family(tied=True, head_follows=False)
_GEMMA4: Final = replace(_GEMMA, norms_per_layer=4, qk_norm=True, window="five-of-six")

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(kv_follows=True),
    "mistral": Family(window="all"),
    "ministral": Family(head_follows=False, window="all"),
    "ministral3": Family(head_follows=False),
    "mistral4": _DEEPSEEK,
    "mixtral": Family(experts="mixtral", window="all"),
    "qwen2": _QWEN,
    "qwen2_moe": replace(_QWEN, experts="qwen"),
    "qwen3": replace(_QWEN, qkv_bias=False, head_follows=False, qk_norm=True),
    "qwen3_moe": Family(head_follows=False, qk_norm=True, experts="qwen", window="all"),
    "qwen2_vl_text": _QWEN,
    "qwen2_5_vl_text": _QWEN,
    "qwen3_vl_text": Family(head_follows=False, qk_norm=True),
    "qwen3_vl_moe_text": Family(head_follows=False, qk_norm=True, experts="qwen"),
    "qwen3_next": replace(_QWEN3_NEXT, experts="qwen"),
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": replace(_QWEN3_NEXT, experts="qwen"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": replace(_DEEPSEEK, index=True),
    "glm_moe_dsa": replace(_DEEPSEEK, index=True),
    "glm4_moe_lite": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "kimi_linear": replace(_DEEPSEEK, linear="kimi-delta"),
    "longcat_flash": replace(_DEEPSEEK, norms_per_layer=4, experts="longcat"),
    "youtu": Family(mha=True, latent=True, tied=True),
    "glm": Family(biases_output=False),
    "glm4": Family(biases_output=False, norms_per_layer=4),
    "glm4_moe": Family(biases_output=False, experts="deepseek", qk_norm=True, qk_norm_key="use_qk_norm"),
    "glm4v_text": Family(qkv_bias=True, biases_output=False, norms_per_layer=4),
    "glm4v_moe_text": Family(biases_output=False, experts="deepseek"),
    "glm_ocr_text": Family(biases_output=False, norms_per_layer=4),
    "afmoe": Family(head_follows=False, norms_per_layer=4, qk_norm=True, gated_attention=True, experts="deepseek",
                    window="three-of-four"),
    "mimo_v2_flash": Family(head_follows=False, value_heads=True, biases_output=False, experts="deepseek"),
    "step3p5": Family(head_follows=False, qk_norm=True, gated_heads=True, experts="step"),
    "solar_open": Family(head_follows=False, experts="deepseek"),
    "minimax": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "minimax_m2": Family(head_follows=False, wide_qk_norm=True, experts="mixtral"),
    "minimax_m3_vl_text": Family(head_follows=False, qk_norm=True, experts="step"),
    "ernie4_5": Family(tied=True, head_follows=False, bias_key="use_bias"),
    "ernie4_5_moe": Family(tied=True, bias_key="use_bias", experts="ernie"),
    "dots1": Family(kv_follows=True, qk_norm=True, experts="deepseek", window="upper"),
    "exaone": Family(kv_follows=True),
    "exaone4": Family(kv_follows=True, qk_norm=True, window="three-of-four"),
    "exaone_moe": Family(kv_follows=True, qk_norm=True, experts="deepseek", window="three-of-four"),
    "hunyuan_v1_dense": Family(kv_follows=True, qk_norm=True),
    "hunyuan_v1_moe": Family(kv_follows=True, qk_norm=True, experts="hunyuan"),
    "hy_v3": Family(head_follows=False, qk_norm=True, experts="deepseek"),
    "seed_oss": Family(head_follows=False, biases_output=False),
    "molmo2_text": Family(head_follows=False, biases_output=False, qk_norm=True),
    "smollm3": Family(tied=True),
    "granite": Family(kv_follows=True),
    "granitemoe": Family(kv_follows=True, experts="mixtral"),
    "granitemoeshared": Family(kv_follows=True, experts="mixtral"),
    "granite_swa": _GRANITE_SWA,
    "granitemoe_swa": replace(_GRANITE_SWA, experts="mixtral"),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms_per_layer=4, window="even"),
    "gemma3_text": replace(_GEMMA, norms_per_layer=4, qk_norm=True, window="five-of-six"),
    "gemma3n_text": replace(_GEMMA, norms_per_layer=4, qk_norm=True),
    "gemma4_text": replace(_GEMMA4, experts="gemma4"),
    "gemma4_unified_text": _GEMMA4,
    "vaultgemma": replace(_GEMMA, window="even"),
    "helium": Family(),
    "apertus": Family(kv_follows=True, qk_norm=True, gated_mlp=False),
    "phi": replace(_GPT2, tied=False, mha=False, kv_follows=True, mlp_factor=None, learned_positions=False,
                   norms_per_layer=1, head_bias=True),
    "phi3": Family(kv_follows=True, window="all"),
    "phimoe": Family(layer_norm=True, experts="mixtral"),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, mha=False, kv_follows=True),
    "gpt_neo": replace(_GPT2, qkv_bias=False),
    "gpt_neox": replace(_GPT2, tied=False, mlp_factor=None, learned_positions=False),
    "gptj": replace(_GPT2, tied=False, learned_positions=False, norms_per_layer=1, qkv_bias=False,
                    output_bias=False, head_bias=True),
    "codegen": replace(_GPT2, tied=False, learned_positions=False, norms_per_layer=1, qkv_bias=False,
                       output_bias=False, head_bias=True),
    "gpt_oss": Family(head_follows=False, attention_sinks=True, experts="mixtral", expert_bias=True,
                      window="even"),
    # OPT's table starts two rows early, a leftover of fairseq's padding.
    "opt": replace(_GPT2, mlp_factor=None, position_offset=2),
    "bloom": replace(_GPT2, learned_positions=False, embedding_norm=True),
    "falcon": replace(_GPT2, learned_positions=False),
    "starcoder2": replace(_GPT2, mha=False, mlp_factor=None, learned_positions=False, mlp_bias=False,
                          qkv_bias=False, output_bias=False, bias_key="use_bias"),
    "stablelm": Family(kv_follows=True, layer_norm=True, wide_qk_norm=True, qk_norm_key="qk_layernorm"),
    "persimmon": replace(_GPT2, tied=False, mlp_factor=None, learned_positions=False, qk_norm=True),
    "mpt": Family(tied=True, mha=True, gated_mlp=False, mlp_factor=4),
    "nemotron_h": Family(head_follows=False, norms_per_layer=1, gated_mlp=False, linear="mamba2",
                         experts="nemotron"),
    "nemotron": Family(layer_norm=True, gated_mlp=False),
    "arcee": Family(kv_follows=True, gated_mlp=False),
    "cohere": Family(tied=True, kv_follows=True, norms_per_layer=1, wide_qk_norm=True, qk_norm_key="use_qk_norm"),
    "cohere2": Family(tied=True, kv_follows=True, norms_per_layer=1, window="three-of-four"),
    "olmo": Family(kv_follows=True, norm_params=False),
    "olmo2": _OLMO,
    "olmo3": replace(_OLMO, window="three-of-four"),
    "olmoe": replace(_OLMO, kv_follows=False, experts="mixtral"),
    "flex_olmo": replace(_OLMO, experts="mixtral"),
    "llama4_text": Family(experts="llama4", window="chunks"),
}  # fmt: skip
"""Of falcon, stablelm, persimmon and molmo2_text the config says more (`huggingface.py`, `config_forms.py`)."""
