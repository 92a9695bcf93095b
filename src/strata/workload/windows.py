"""How far each block of a model looks back: sliding windows and chunks, as its config says or its family has it.

Sources: `layer_types` and the configuration classes of Hugging Face transformers (mistral, qwen2, gemma2, gemma3,
phi3, gpt_oss, llama4, cohere2, olmo3, exaone4, granite_swa). GPT-Neo's local attention is left out: no
implementation of it saves work or memory.
"""

from __future__ import annotations

from typing import Final

from strata.workload.config_keys import ConfigKeys
from strata.workload.families import Sliding

_SLIDES: Final = {"sliding_attention": True, "chunked_attention": True, "full_attention": False}
_PATTERNS: Final = {"three-of-four": 4, "five-of-six": 6}
_LLAMA4_PATTERN: Final = 4


def windows(keys: ConfigKeys, pattern: Sliding, layers: int) -> tuple[int, ...]:
    """Return the tokens that each block looks back at, 0 for all; empty where no block has a window.

    A config that gives no window has none. A chunk counts as a window of its size: as many tokens are cached, and
    of its first tokens some look at fewer. Notes faults in `keys`.
    """
    chunks = pattern == "chunks"
    key = "attention_chunk_size" if chunks else "sliding_window"
    is_off = keys.data.get("use_sliding_window", pattern != "upper") is False
    if keys.data.get(key) is None or is_off or not (pattern or keys.data.get("layer_types")):
        return ()
    window = keys.size(key)
    slides = _listed(keys, layers, chunks=chunks) or [_slides(keys, pattern, layer) for layer in range(layers)]
    return tuple(window if does else 0 for does in slides) if any(slides) else ()


def _listed(keys: ConfigKeys, layers: int, *, chunks: bool) -> list[bool] | None:
    """Return what the config says of each block, None where it does not."""
    name = "no_rope_layers" if chunks and keys.data.get("no_rope_layers") else "layer_types"
    listed = keys.data.get(name)
    if not listed:
        return None
    known = {0: False, 1: True} if name == "no_rope_layers" else _SLIDES  # with positions: in chunks
    if not isinstance(listed, list) or len(listed) != layers:
        keys.fault(name, f"must be a list of one entry for each of {layers} layers")
        return None
    unknown = next((entry for entry in listed if not isinstance(entry, str | int) or entry not in known), None)
    if unknown is not None:
        keys.fault(name, f"{unknown!r} is none of {', '.join(map(str, known))}")
        return None
    return [known[entry] for entry in listed]


def _slides(keys: ConfigKeys, pattern: Sliding, layer: int) -> bool:
    if pattern == "even":
        return layer % 2 == 0
    if pattern == "last-three-of-four":
        return layer % 4 != 0
    if pattern in _PATTERNS:
        written = keys.data.get("sliding_window_pattern")  # EXAONE 4 writes LLLG: three local blocks, a global one
        every = len(written) if isinstance(written, str) and written else None
        return (layer + 1) % (every or keys.size("sliding_window_pattern", _PATTERNS[pattern])) != 0
    if pattern == "upper":
        return layer >= keys.size("max_window_layers", least=0)
    if pattern == "chunks":
        return (layer + 1) % _LLAMA4_PATTERN != 0
    return pattern == "all"
