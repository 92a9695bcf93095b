"""Small model folders of every family, as Hugging Face saves them: random weights, several shards, a tokenizer."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}</s>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXTS = [
    "the quick brown fox jumps over the lazy dog, and the dog does not mind",
    "once upon a time there was a scheduler that said why: naïve, 日本語, 🙂",
]
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
SPARSE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "mistral": ("Mistral", {"sliding_window": 12}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen2": ("Qwen2", {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 2,
                        "tie_word_embeddings": True}),
    "qwen2-moe": ("Qwen2Moe", {**SPARSE, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3": ("Qwen3", {"head_dim": 24, "rope_parameters": YARN_ROPE}),
    "qwen3-moe": ("Qwen3Moe", {**SPARSE, "head_dim": 16, "norm_topk_prob": True, "moe_intermediate_size": 48,
                               "num_key_value_heads": 1}),
}  # fmt: skip
"""By name: the configuration class of transformers, and what differs from the others."""


@functools.cache
def _made(name: str, dtype: str) -> Path:
    import strata.serving.pretrained  # transformers stays off the network  # noqa: F401, I001
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind, more = FAMILIES[name]
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
        "vocab_size": 384,
        "initializer_range": 0.3,  # far from each other: what is likeliest does not hang on a rounding
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    config = getattr(transformers, f"{kind}Config")(**(sizes | more))
    torch.manual_seed(sorted(FAMILIES).index(name))
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    folder = Path(tempfile.mkdtemp(prefix=f"strata-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model.save_pretrained(folder, max_shard_size="150KB")
    tokenizer().save_pretrained(folder)
    return folder


def make(name: str, to: Path, *, dtype: str = "float32") -> Path:
    """Return a folder of a family, a copy of its own."""
    return Path(shutil.copytree(_made(name, dtype), to / name))


@functools.cache
def tokenizer() -> Any:
    """Return a byte-level tokenizer as those of Llama 3 and Qwen are: special tokens 0 and 1, a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(TEXTS * 20, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", chat_template=CHAT_TEMPLATE
    )


def edit(folder: Path, file: str = "config.json", **changes: Any) -> None:
    """Change keys of a JSON file of a folder; None removes one."""
    path = folder / file
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))


def generated(folder: Path, prompt: list[int], count: int, *, device: str = "cpu") -> list[int]:
    """Return what transformers says after a prompt: the likeliest tokens, without one that ends it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto").eval()
    with torch.inference_mode():
        given = torch.tensor([prompt], device=model.to(device).device)
        said = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False)
    tokens = said[0, len(prompt) :].tolist()
    return tokens[:-1] if tokens[-1] == 1 else tokens
