"""Models from a Hugging Face `config.json`, and the few that ship by name.

A size is never guessed: a key that is missing is an error, unless the family's own configuration class fills it
with a value that follows from other keys (noted at `FAMILIES`). Models of images or sound are read as their
text model. Quantisation is ignored: training does not use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from strata.decision import Trust
from strata.errors import BadFile, Fault, UsageError
from strata.files import read_json
from strata.names import closest
from strata.workload.config_forms import in_common_keys
from strata.workload.config_keys import GUESS, MAX_LAYERS, ConfigKeys
from strata.workload.families import FAMILIES, Family
from strata.workload.heads import Heads, LatentAttention
from strata.workload.linear_layers import linear_attention
from strata.workload.mixtures import experts
from strata.workload.model import ModelSpec
from strata.workload.other_heads import other_heads
from strata.workload.shared_kv import SHARES_KV, shared_kv
from strata.workload.side_inputs import alternating_updates, layer_embeddings
from strata.workload.windows import windows

_FOLDER: Final = Path(__file__).parent / "models"

_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")

_NOT_DECODERS: Final[Mapping[str, str]] = {
    name: reason
    for reason, names in {
        "an encoder-decoder": "t5 mt5 umt5 bart mbart pegasus m2m_100 marian whisper t5gemma",
        "an encoder": "bert roberta deberta deberta-v2 electra distilbert xlm-roberta modernbert",
        "a vision model": "vit clip siglip dinov2 swin",
        "a model with state-space, convolution or other linear layers": (
            "mamba mamba2 falcon_mamba falcon_h1 rwkv jamba bamba zamba zamba2 recurrent_gemma "
            "granitemoehybrid lfm2 lfm2_moe olmo_hybrid bailing_hybrid"
        ),
    }.items()
    for name in names.split()
}

_UNKNOWN: Final = Family(tied=None)

_NOT_LLAMAS: Final = "expert|ssm|mamba|linear_attn|linear_num|kv_lora_rank|shared_kv|kv_shared|per_layer_input"
"""Parts of keys that say a model is built unlike llama."""


def model_names() -> list[str]:
    """Return the names of the models that ship with strata, sorted."""
    return sorted(file.stem for file in _FOLDER.glob("*.json"))


def model(source: str | Path, *, base: Path | None = None) -> ModelSpec:
    """Return a model by its shipped name, or from a config.json or a folder with one (relative to `base`).

    A path wins over a name only where it is written as one (`./gpt2`, `x.json`). Raises UsageError for what is
    neither, BadFile for a config that cannot be used.
    """
    text, path = str(source), (base or Path()) / source
    if len(Path(source).parts) == 1 and not text.startswith(".") and not text.endswith(".json"):
        if text.casefold() in model_names():
            return model_from_config(_FOLDER / f"{text.casefold()}.json")
        if not path.exists():
            close = closest(text.casefold(), model_names(), cutoff=0.5)
            raise UsageError(
                f"{text}: no such file, and no bundled model of that name",
                hint=f"did you mean {close!r}?" if close else "`strata model` lists the names",
            )
    return model_from_config(path)


def model_from_config(path: str | Path) -> ModelSpec:
    """Read a Hugging Face config.json, or a folder that contains one.

    Raises BadFile with every missing or wrong key, or with the reason why the model is none strata can plan.
    """
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    data = read_json(file)
    if not isinstance(data, Mapping):
        raise BadFile([Fault(str(path), "must be a JSON object, a model's config.json")])
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return model_from_keys(data, path=str(file), name=name)


def model_from_keys(data: Mapping[str, Any], *, path: str, name: str) -> ModelSpec:
    """Return the model of a config's keys, named `name`. Raises BadFile, its faults in `path`."""
    config, where = _text_model(data, path)
    keys = ConfigKeys(config, path, where)
    spec = _spec(name, keys, nested=bool(where))
    if keys.faults:
        raise BadFile([unsupported] if (unsupported := _unsupported(keys)) else keys.faults)
    return spec


def _unsupported(keys: ConfigKeys) -> Fault | None:
    """Return the one fault of a model of a type that is not known and that has not all of llama's keys."""
    kind = keys.data.get("model_type")
    if not isinstance(kind, str) or kind in FAMILIES or not any(GUESS in fault.message for fault in keys.faults):
        return None
    message = f"model_type {kind!r} is not supported, and its keys are not llama's"
    return Fault(keys.path, f"{message} (supported: {', '.join(FAMILIES)})", where="model_type")


def _text_model(data: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], str]:
    """Return the innermost text model and its place in the file. Raises BadFile for what is not a decoder."""
    where: list[str] = []
    while True:
        _refuse_not_decoder(data, path, ".".join(where))
        inner = next((key for key in _NESTED if isinstance(data.get(key), Mapping)), None)
        if inner is None:
            return data, ".".join(where)
        # The one key that transformers writes outside and means for the inside.
        outer = {key: data[key] for key in ("tie_word_embeddings",) if key in data}
        data = {**outer, **data[inner]}
        where.append(inner)


def _refuse_not_decoder(data: Mapping[str, Any], path: str, where: str) -> None:
    kind = data.get("model_type")
    reason = _NOT_DECODERS.get(kind) if isinstance(kind, str) else None
    if reason is None and (data.get("is_encoder_decoder") is True or ("encoder" in data and "decoder" in data)):
        reason = "an encoder-decoder"
    if reason is not None:
        message = f"{kind or 'this'} is {reason}; strata plans decoder-only transformers"
        raise BadFile([Fault(path, message, where=where)])


def _context_limit(data: Mapping[str, Any]) -> int | None:
    """Return the tokens that a config says its model takes; None where it does not say so in a number."""
    value = data.get("max_position_embeddings", data.get("n_positions"))
    return value if isinstance(value, int) and value > 0 else None


def _spec(name: str, keys: ConfigKeys, *, nested: bool) -> ModelSpec:
    model_type = keys.data.get("model_type")
    family = FAMILIES.get(model_type, _UNKNOWN) if isinstance(model_type, str) else _UNKNOWN
    known = family is not _UNKNOWN
    if not known:
        _refuse_unlike_llama(keys)
    if model_type == "falcon":
        family = falcon(keys)
    if model_type == "stablelm":
        family = stablelm(keys)
    if model_type == "persimmon":
        family = replace(family, qk_norm=keys.flag("qk_layernorm", default=True))
    if model_type == "molmo2_text":
        family = molmo2(keys)
    in_common_keys(keys, model_type)
    if model_type == "phi" and keys.flag("qk_layernorm", default=False):
        keys.fault("qk_layernorm", "normed queries and keys of Phi are not supported")
    hidden = keys.size("hidden_size")
    layers = keys.size("num_hidden_layers", most=MAX_LAYERS)
    heads = keys.size("num_attention_heads")
    latent = _latent(keys, index=family.index) if family.latent else None
    head_dim = latent.v_head_dim if latent else _head_dim(keys, family, hidden, heads)
    kv_heads = heads if family.mha else keys.size("num_key_value_heads", heads if family.kv_follows else None)
    value_dim = keys.size("v_head_dim", head_dim) if family.value_heads else head_dim
    if heads % kv_heads and not keys.faults:
        keys.fault("num_key_value_heads", f"{heads} heads are not a multiple of {kv_heads} key-value heads")
    positions = keys.size("max_position_embeddings") if family.learned_positions else 0
    every_bias = bool(family.bias_key) and keys.flag(family.bias_key, default=False)
    attention_bias = keys.flag("attention_bias", default=False)
    out_bias = keys.flag("attention_out_bias", default=False)
    has_qk_norm = not family.qk_norm_key or keys.flag(family.qk_norm_key, default=False)
    qk_norms = 2 * family.qk_norm * (2 if family.layer_norm else 1) + (heads + kv_heads) * family.wide_qk_norm
    # OPT-350M alone normalises after each block, and has no norm at the end.
    final_norm = keys.flag("do_layer_norm_before", default=True) if model_type == "opt" else True
    moe = experts(keys, family, layers)
    slides = windows(keys, family.window, layers)
    qk_norm_params = head_dim * qk_norms if has_qk_norm else 0
    base = Heads(heads, kv_heads, head_dim, value_dim, qk_norm_params=qk_norm_params)
    other = other_heads(keys, model_type, base, windows=slides, layers=layers)
    # A mixture of Gemma 4 stands beside a dense MLP: norms before and after both, and the router's own.
    norms = 2 * family.norms_per_layer if family.experts == "gemma4" and moe else family.norms_per_layer
    width = hidden * family.mlp_factor if family.mlp_factor is not None else None
    if moe is not None and not moe.dense_layers:
        width = moe.intermediate_size  # Solar and Qwen3.5 state no other, as no block is dense
    return ModelSpec(
        name=name,
        model_type=str(model_type or "unknown"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=keys.size("vocab_size"),
        intermediate_size=keys.size(
            "intermediate_size_mlp" if family.experts == "llama4" else "intermediate_size", width
        ),
        embedding_size=keys.size("word_embed_proj_dim", hidden) if model_type == "opt" else hidden,
        gated_mlp=family.gated_mlp,
        tied_embeddings=keys.flag("tie_word_embeddings", default=family.tied),
        added_rows=keys.size("additional_vocab_size", 128, least=0) if model_type == "molmo2_text" else 0,
        num_positions=positions + family.position_offset if positions else 0,
        max_sequence_length=positions or None,
        context_limit=_context_limit(keys.data),
        norms_per_layer=norms,
        final_norm=final_norm,
        norm_bias=family.layer_norm,
        norm_params=family.norm_params,
        qk_norm_params=qk_norm_params,
        qkv_bias=family.qkv_bias or attention_bias or every_bias,
        output_bias=family.output_bias or (attention_bias and family.biases_output) or every_bias or out_bias,
        mlp_bias=family.mlp_bias or every_bias or keys.flag("mlp_bias", default=False),
        head_bias=family.head_bias or keys.flag("lm_head_bias", default=False),
        embedding_norm=family.embedding_norm,
        attention_sinks=family.attention_sinks or keys.flag("add_full_attention_sink_bias", default=False),
        gated_attention=family.gated_attention,
        gated_heads=family.gated_heads,
        value_head_dim=value_dim if value_dim != head_dim else 0,
        other=other,
        windows=slides,
        latent=latent,
        linear=linear_attention(keys, family.linear, layers, heads=heads, head_dim=head_dim),
        lone=tuple(keys.data["layers_block_type"]) if model_type == "nemotron_h" else (),
        experts=moe,
        attentions=2 if model_type == "longcat_flash" else 1,
        shared=shared_kv(keys, slides, layers) if model_type in SHARES_KV else None,
        layer_embeddings=layer_embeddings(keys, layers) if model_type in SHARES_KV else None,
        altup=alternating_updates(keys) if model_type == "gemma3n_text" else None,
        trust=Trust.ANALYTIC if known else Trust.ASSUMED,
        notes=_notes(keys, known=known, nested=nested),
    )


def falcon(keys: ConfigKeys) -> Family:
    """Return what a Falcon has: its config says whether heads share keys, and which norms and biases there are."""
    heads = keys.given("num_attention_heads")
    several = keys.flag("new_decoder_architecture", default=False)
    parallel = several or keys.flag("parallel_attn", default=True)
    bias = keys.flag("bias", default=False)
    if not several:  # a number in the config means nothing then
        shared = keys.flag("multi_query", default=True)
        keys.data = {**keys.data, "num_key_value_heads": 1 if shared else keys.data.get(heads or "")}
    norms = keys.size("num_ln_in_parallel_attn", 2) if several else 1 if parallel else 2
    return replace(FAMILIES["falcon"], mha=False, kv_follows=True, norms_per_layer=norms, mlp_bias=bias,
                   qkv_bias=bias, output_bias=bias)  # fmt: skip


def stablelm(keys: ConfigKeys) -> Family:
    """Return what a StableLM has: its config says how many norms, and whether there are biases."""
    norms = 1 if keys.flag("use_parallel_residual", default=False) else 2
    return replace(FAMILIES["stablelm"], norms_per_layer=norms, qkv_bias=keys.flag("use_qkv_bias", default=False))


def molmo2(keys: ConfigKeys) -> Family:
    """Return what a Molmo 2 has: its config says of what the norms of queries and keys are."""
    kind = keys.data.get("qk_norm_type", "qwen3")
    if kind not in ("qwen3", "olmo") or not keys.flag("use_qk_norm", default=True):
        keys.fault("qk_norm_type", "only norms of queries and keys as Qwen3 or OLMo has them are supported")
    if keys.flag("tie_word_embeddings", default=False):
        keys.fault("tie_word_embeddings", "the embedding has rows that the head has not")
    return replace(FAMILIES["molmo2_text"], qk_norm=kind == "qwen3", wide_qk_norm=kind == "olmo")


def _refuse_unlike_llama(keys: ConfigKeys) -> None:
    kind, known = keys.data.get("model_type"), ", ".join(FAMILIES)
    odd = [key for key, value in keys.data.items() if value and re.search(_NOT_LLAMAS, key)]
    types = keys.data.get("layer_types")
    if isinstance(types, list) and not {"full_attention", "sliding_attention"}.issuperset(map(str, types)):
        odd.append("layer_types")
    if keys.data.get("hidden_act", "silu") not in ("silu", "swish"):
        odd.append("hidden_act")  # elsewhere the MLP is seldom gated, a third of its parameters
    if odd:
        message = f"model_type {kind!r} is not supported, and this key is not llama's (supported: {known})"
        raise BadFile([*keys.faults, Fault(keys.path, message, where=odd[0])])


def _head_dim(keys: ConfigKeys, family: Family, hidden: int, heads: int) -> int:
    if keys.given("head_dim") is not None or not family.head_follows:
        return keys.size("head_dim")
    if hidden % heads and not keys.faults:
        keys.fault("head_dim", f"is missing, and hidden size {hidden} is not a multiple of {heads} heads")
    return max(1, hidden // heads)


def _latent(keys: ConfigKeys, *, index: bool) -> LatentAttention:
    return LatentAttention(
        q_lora_rank=keys.size("q_lora_rank") if keys.data.get("q_lora_rank") is not None else None,
        kv_lora_rank=keys.size("kv_lora_rank"),
        qk_nope_head_dim=keys.size("qk_nope_head_dim"),
        qk_rope_head_dim=keys.size("qk_rope_head_dim"),
        v_head_dim=keys.size("v_head_dim"),
        index_heads=keys.size("index_n_heads") if index else 0,
        index_head_dim=keys.size("index_head_dim") if index else 0,
    )


def _notes(keys: ConfigKeys, *, known: bool, nested: bool) -> tuple[str, ...]:
    notes = []
    if not known:
        notes.append(f"model_type {keys.data.get('model_type')!r} is not known: read as if it were llama")
    if nested:
        notes.append("the text model alone: vision and sound are not counted")
    if keys.data.get("num_kv_shared_layers") or keys.data.get("hidden_size_per_layer_input"):
        notes.append("stages send on more than a hidden state, and serving keeps all layers on one node")
    if keys.data.get("zero_expert_num"):
        notes.append("a token is counted with its mean of experts: some of those chosen compute nothing")
    if keys.data.get("model_type") == "longcat_flash":
        notes.append("experts are counted after a layer's other work, beside which their shortcut lets them run")
    if keys.data.get("model_type") == "gemma3n_text":
        notes.append("activations that are set to zero (activation_sparsity_pattern) are counted as all others")
    if keys.data.get("num_nextn_predict_layers"):
        notes.append("multi-token-prediction layers are not counted, as in the published size")
    if "shared" in str(keys.data.get("indexer_types")) or keys.data.get("index_topk_freq", 1) != 1:
        notes.append("every layer is counted with an index of its own, some share one")
    if keys.data.get("mamba_ssm_cache_dtype") == "float32":
        notes.append("the state of Mamba counts as wide as other caches, and the config keeps it in fp32")
    if keys.data.get("index_topk_blocks") and "minimax_m3_sparse" in str(keys.data.get("layer_types")):
        blocks = keys.data["index_topk_blocks"]
        notes.append(f"attention is counted to all tokens, not to the {blocks} blocks that are chosen")
    if keys.data.get("index_topk"):
        notes.append(f"attention is counted to all tokens, not to the {keys.data['index_topk']} that are chosen")
    return tuple(notes)
