"""Writes small models of random weights, as vLLM and as llama.cpp read them: run by the engines' own Python.

Every token is a letter or a byte, and what they say is letters: a text has one way to be tokens, so that an answer
goes on elsewhere where it broke off, and greedy it is the same again.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% if not loop.last or add_generation_prompt %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
LETTERS = string.ascii_lowercase


def write_folder(folder: Path) -> None:
    """A llama as Hugging Face saves it, four layers."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
    ).save_pretrained(folder)
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        intermediate_size=96, max_position_embeddings=2048, vocab_size=len(alphabet), initializer_range=0.3,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        model.lm_head.weight[[i for i, token in enumerate(alphabet) if token not in LETTERS]] = 0
    model.save_pretrained(folder)


def write_gguf(file: Path) -> None:
    """A llama for llama.cpp, large enough to take a few milliseconds a token."""
    import gguf
    import numpy as np

    size, layers, heads, inner, context = 256, 4, 4, 1024, 4096
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_of, *LETTERS]
    kinds = gguf.TokenType
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * len(LETTERS)
    out = gguf.GGUFWriter(file, "llama")
    out.add_context_length(context)
    out.add_embedding_length(size)
    out.add_block_count(layers)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(heads)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(size // heads)
    out.add_vocab_size(len(tokens))
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * len(tokens))
    out.add_token_types(types)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)

    def add(name: str, rows: int, scale: float, *, silent: int = 0) -> None:
        weights = (random.standard_normal((rows, size if "down" not in name else inner)) * scale).astype("float32")
        weights[:silent] = 0
        out.add_tensor(f"{name}.weight", weights)

    def norm(name: str) -> None:
        out.add_tensor(f"{name}.weight", np.ones(size, "float32"))

    add("token_embd", len(tokens), 1.0)
    add("output", len(tokens), 1.0, silent=len(tokens) - len(LETTERS))
    norm("output_norm")
    for block in (f"blk.{layer}" for layer in range(layers)):
        norm(f"{block}.attn_norm")
        norm(f"{block}.ffn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"):
            add(f"{block}.{part}", size, 0.1)
        for part in ("ffn_gate", "ffn_up"):
            add(f"{block}.{part}", inner, 0.1)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    to = Path(sys.argv[1])
    write_gguf(to) if to.suffix == ".gguf" else write_folder(to)
