"""`software:` of a training job file: what runs the job, as far as it decides how long a step takes."""

from __future__ import annotations

from typing import Any, Final, Literal

from strata.files import FileModel
from strata.workload.software import Software

Framework = Literal["auto", "megatron-core", "pytorch"]
Dispatcher = Literal["alltoall", "flex"]

_FLAGS: Final = ("true", "false")
_ENGINE: Final[dict[str, bool | None]] = {"auto": None, "megatron-core": True, "pytorch": False}


class SoftwareEntry(FileModel):
    """What runs the job. `framework: auto` is Megatron-Core's Transformer Engine where products are in 8 bit.

    Of mixtures: dispatcher as Megatron-Core names it, token_drop, overlap_experts (their exchanges run beside
    other work), cuda_graphs (a step is launched at once). compiled, async_tensor_parallel: of PyTorch.
    """

    framework: Framework = "auto"
    dispatcher: Dispatcher = "alltoall"
    token_drop: bool = False
    overlap_experts: bool = False
    cuda_graphs: bool = False
    compiled: bool = True
    async_tensor_parallel: bool = False
    fused_loss: bool = False
    gradients: Literal["fp32", "model"] = "model"


ATTRIBUTES: Final = {
    "framework": "transformer_engine",
    "dispatcher": "sorts_apart",
    "token_drop": "drops_tokens",
    "overlap_experts": "hides_exchanges",
    "cuda_graphs": "cuda_graphs",
    "compiled": "fused_norms",
    "async_tensor_parallel": "hides_sums",
    "fused_loss": "fused_loss",
    "gradients": "wide_gradients",
}
"""Of `Software`, by the keys of a job file."""


def software_value(key: str, value: Any) -> bool | None:
    """Return what `Software` holds of a key's value."""
    match key:
        case "framework":
            return _ENGINE[value]
        case "dispatcher":
            return bool(value == "alltoall")
        case "gradients":
            return bool(value == "fp32")
    return bool(value)


def software_text(key: str, value: bool | None) -> str:
    """Return what a job file says for what `Software` holds."""
    words = {"framework": tuple(_ENGINE), "dispatcher": ("alltoall", "flex"), "gradients": ("fp32", "model")}
    return next(word for word in words.get(key, _FLAGS) if _read(key, word) is value)


def _read(key: str, word: str) -> bool | None:
    return word == "true" if word in _FLAGS else software_value(key, word)


def software_of(entry: SoftwareEntry) -> Software:
    """Return what a job's software does."""
    values: dict[str, Any] = {
        ATTRIBUTES[key]: software_value(key, value) for key, value in entry.model_dump().items()
    }
    return Software(**values)


def software_entry(software: Software) -> SoftwareEntry:
    """Return what a job file says of software, as far as it can."""
    texts = {key: software_text(key, getattr(software, name)) for key, name in ATTRIBUTES.items()}
    return SoftwareEntry.model_validate(
        {key: text == "true" if text in _FLAGS else text for key, text in texts.items()}
    )
