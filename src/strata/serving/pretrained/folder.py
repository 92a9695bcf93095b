"""A model's folder, read without torch: sizes, precision, where each tensor lies, where answers end, a digest.

Everything that can be wrong is found here or in `checkpoint`, before a worker joins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from strata.errors import BadFile, Fault, UsageError
from strata.files import read_json
from strata.serving.hosted import HostedModel
from strata.workload.huggingface import model_from_config
from strata.workload.inference import ModelInfo

MODEL_TYPES: Final = ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""Those whose layers were held against transformers' `generate`, token by token."""
ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")
"""Whose frequencies do not depend on how long a sequence is: rows of several sequences go through one layer."""
DTYPE_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
ACTIVATION_BYTES: Final = 4
"""Activations travel as float32, which holds the others exactly."""
INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_ENGINE: Final = "a model that workers run, or an engine behind `strata serve gateway --backend URL`"
_AGAIN: Final = "fetch the folder again, all of its files"
_UNHASHED: Final = ("_name_or_path", "transformers_version")
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096
_MAX_HEADER_BYTES: Final = 100_000_000
"""As in the safetensors library."""
_MAX_JSON_BYTES: Final = 2**28
"""Indexes of mixtures of experts list tens of thousands of tensors."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: its file, its precision as safetensors writes it, and its shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that can be served. config: the file's keys; tensors: by name, of all its shards."""

    path: Path
    config: Mapping[str, Any]
    hosted: HostedModel
    dtype: str
    tensors: Mapping[str, StoredTensor]
    stop_tokens: tuple[int, ...]

    @property
    def config_file(self) -> Path:
        """Its config.json."""
        return self.path / "config.json"


def read_folder(path: Path) -> ModelFolder:
    """Read a model's folder. Raises UsageError or BadFile for whatever would keep a worker from serving it."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder", hint="the folder that has the model's config.json")
    file = path / "config.json"
    config = _object(file)
    _refuse(config, str(file))
    spec, dtype = model_from_config(file), config.get("dtype", config.get("torch_dtype"))
    if spec.context_limit is None:
        fault = Fault(
            str(file), "is missing: the tokens that a sequence may have", where="max_position_embeddings"
        )
        raise BadFile([fault])
    width = DTYPE_BYTES[dtype]
    info = replace(
        ModelInfo.of(spec, weight_bytes_per_param=width, kv_element_bytes=width),
        hidden_bytes=float(ACTIVATION_BYTES * spec.hidden_size),
        weights="fp32" if width == DTYPE_BYTES["float32"] else "bf16",
    )
    tensors = _tensors(path)
    hosted = HostedModel(
        info=info,
        vocab_size=spec.vocab_size,
        max_positions=spec.context_limit,
        fingerprint=_fingerprint(path, config, tensors),
    )
    return ModelFolder(path, config, hosted, dtype, tensors, _stop_tokens(path, config))


def _object(file: Path) -> Mapping[str, Any]:
    data = read_json(file, max_bytes=_MAX_JSON_BYTES)
    if not isinstance(data, dict):
        raise BadFile([Fault(str(file), "must be a JSON object")])
    return data


def _refuse(config: Mapping[str, Any], file: str) -> None:
    """Raise BadFile for a model that workers do not run."""
    kind, known = config.get("model_type"), ", ".join(MODEL_TYPES)
    if kind not in MODEL_TYPES:
        raise BadFile([Fault(file, f"workers run {known}, not {kind!r}", where="model_type")], hint=_ENGINE)
    if config.get("quantization_config"):
        fault = Fault(file, "workers run float weights, not quantised ones", where="quantization_config")
        raise BadFile([fault], hint="the model's folder without quantisation, or an engine behind --backend")
    dtype = config.get("dtype", config.get("torch_dtype"))
    if dtype not in DTYPE_BYTES:
        trouble = "is missing" if dtype is None else f"{dtype!r} is not one"
        fault = Fault(file, f"{trouble}; workers run {', '.join(DTYPE_BYTES)}", where="dtype")
        raise BadFile([fault], hint='the precision that the weights are stored in, as `"dtype": "bfloat16"`')
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    if rope_type not in ROPE_TYPES:
        fault = Fault(file, f"{rope_type!r} is none of {', '.join(ROPE_TYPES)}", where="rope_type")
        raise BadFile([fault], hint=_ENGINE)


def _tensors(path: Path) -> dict[str, StoredTensor]:
    """Return all tensors, as the headers of the shards have them. Raises BadFile where the index differs."""
    index = path / INDEX
    if not index.exists():
        if not (path / SINGLE).exists():
            message = f"has neither {INDEX} nor {SINGLE}"
            raise BadFile([Fault(str(path), message)], hint="a model saved as safetensors, all of its files")
        return _header(path / SINGLE)
    listed = _object(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise BadFile([Fault(str(index), "must map tensors to files", where="weight_map")], hint=_AGAIN)
    names = sorted(set(listed.values()))
    if outside := next((name for name in names if Path(name).name != name), None):
        raise BadFile([Fault(str(index), f"{outside!r} is not a file of this folder", where="weight_map")])
    missing = [Fault(str(path / name), f"{INDEX} names it, and it is not here") for name in names
               if not (path / name).is_file()]  # fmt: skip
    if missing:
        raise BadFile(missing, hint=_AGAIN)
    headers = {name: _header(path / name) for name in names}
    faults = [Fault(str(path / name), f"{INDEX} says that it has {tensor}, which it has not")
              for tensor, name in listed.items() if tensor not in headers[name]]  # fmt: skip
    if faults:
        raise BadFile(faults[:10], hint=_AGAIN)
    return {tensor: headers[name][tensor] for tensor, name in listed.items()}


def _header(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of one file, as the format has them: the header's length in 8 bytes, then JSON.

    Source: https://github.com/huggingface/safetensors#format.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            raw = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
        header = json.loads(raw)
        header.pop("__metadata__", None)
        tensors = {
            name: StoredTensor(file, str(entry["dtype"]), tuple(map(int, entry["shape"])))
            for name, entry in header.items()
        }
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise BadFile([Fault(str(file), "not a safetensors file")], hint=_AGAIN) from None
    if (missing := 8 + length + end - file.stat().st_size) > 0:
        raise BadFile([Fault(str(file), f"ends {missing} bytes too early")], hint=_AGAIN)
    return tensors


def _fingerprint(path: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str:
    """Return the digest of a folder: its config, its tokenizer, and of each shard its size, header and samples.

    Weights are sampled, 16 times 4 KiB a file: a fine-tuned copy differs everywhere, and to read all of a large
    model would take minutes at each start.
    """
    hashed = {key: value for key, value in config.items() if key not in _UNHASHED}
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode())
    tokenizer = path / "tokenizer.json"
    digest.update(hashlib.sha256(tokenizer.read_bytes() if tokenizer.exists() else b"").digest())
    for file in sorted({tensor.file for tensor in tensors.values()}):
        with file.open("rb") as stream:
            start = stream.read(8)
            digest.update(start + stream.read(int.from_bytes(start, "little")))
            size, begin = file.stat().st_size, stream.tell()
            digest.update(f"{file.name} {size}".encode())
            for sample in range(_SAMPLES):  # the last ends where the file does
                stream.seek(begin + max(0, size - begin - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _stop_tokens(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end an answer, as transformers' `generate` has them. Raises BadFile."""
    file = path / "generation_config.json"
    source = file if file.exists() else path / "config.json"
    value = (_object(file) if file.exists() else config).get("eos_token_id")
    tokens = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in tokens):
        raise BadFile([Fault(str(source), f"{value!r} is not a token, nor a list of them", where="eos_token_id")])
    return tuple(tokens)
