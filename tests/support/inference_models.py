"""Models as they are served, in one line each."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strata.workload.experts import Experts
from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo
from strata.workload.model import ModelSpec


def served(name: str, **more: Any) -> ModelInfo:
    return ModelInfo.of(model(name), **more)


def spec(
    layers: int = 8,
    *,
    hidden: int = 1024,
    tied: bool = False,
    experts: Experts | None = None,
    windows: tuple[int, ...] = (),
) -> ModelSpec:
    return ModelSpec(
        name="test",
        model_type="llama",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=8,
        num_kv_heads=2,
        head_dim=hidden // 8,
        vocab_size=32_000,
        intermediate_size=4 * hidden,
        embedding_size=hidden,
        tied_embeddings=tied,
        experts=experts,
        windows=windows,
    )


def small(layers: int = 8, **more: Any) -> ModelInfo:
    return ModelInfo.of(spec(layers, **more))


@st.composite
def models(draw: st.DrawFn) -> ModelInfo:
    """Dense models and mixtures with some dense layers at the front, tied or not, with windows or without."""
    layers = draw(st.integers(1, 12))
    experts = None
    if draw(st.booleans()):
        dense = frozenset(range(draw(st.integers(0, layers - 1))))
        experts = Experts(16, draw(st.integers(1, 4)), 512, draw(st.sampled_from([0, 512])), dense_layers=dense)
    sizes = st.sampled_from([0, 128, 4096])
    windows = draw(st.just(()) | st.lists(sizes, min_size=layers, max_size=layers).map(tuple))
    return small(layers, tied=draw(st.booleans()), experts=experts, windows=windows)
