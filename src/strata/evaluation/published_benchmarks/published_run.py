"""Published training runs: a CSV table of a model, the cards it ran on, its layout, and the time of a step.

One row is one run. `model` is a bundled name, or pairs: `kind=gpt hidden=… layers=… heads=… kv_heads=… ffn=…
vocab=…`, or `kind=config` with keys of a Hugging Face config.json. An empty `microbatch` or `virtual_stages` was
not published and is free to choose. `step_s` may be missing: such a row is predicted and held against nothing.
`memory_gib` may say the peak of a device.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strata.errors import BadFile, Fault, UsageError
from strata.files import read_text
from strata.fleet.accelerator import Accelerator
from strata.fleet.catalogue import accelerator
from strata.names import closest
from strata.workload.huggingface import model, model_from_keys, model_names
from strata.workload.job import PRECISION_BYTES, Recompute
from strata.workload.model import ModelSpec

REQUIRED: Final = (
    "model", "accelerator", "num_gpus", "gpus_per_node", "node_network_gbps", "precision", "sequence",
    "global_batch", "tp", "pp", "dp",
)  # fmt: skip

_GPT_SIZES: Final = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab")
_MOST: Final = 10**9

_RECOMPUTE: Final = {
    "none": Recompute.NONE, "selective": Recompute.NONE, "selective_op": Recompute.SELECTIVE_OP,
    "full": Recompute.FULL,
}  # fmt: skip
"""Selective recomputation drops the attention scores alone (arXiv 2205.05198 §5), which the model never keeps."""

_NEVER_NONE: Final = {"torchtitan": Recompute.SELECTIVE_OP, "deepseek": Recompute.SELECTIVE}
"""What sources, by how they begin, recomputed wherever it was not everything, so that "none" is not what ran:
torchtitan selected operations (benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3), DeepSeek-V3 norms,
activation functions and up-projections (arXiv 2412.19437 §3.2.3), as Megatron Bridge's recipes do of models with
latent attention."""

_DROPS: Final = re.compile(
    r"\btokens?[- ]?drop|\bdrop(s|ped|ping)?[- ]tokens?\b|\btokens? (is|are|were) dropped", re.I
)
_DROPS_NONE: Final = re.compile(r"\b(no|not|without|dropless)\b[- ]?(token)?[- ]?(drop|\b)", re.I)

_RELEASE: Final = re.compile(r"(?<![\d.])2[4-9]\.\d\d(?:\.\d\d)?(?![\d.])")
"""Of NVIDIA's containers, as rows are named by: 25.09, 26.02.01."""

_NOTHING: Final = ("n/a", "na", "nan", "null", "-")
"""What tables write in the place of a value that there is none of."""

_PRECISIONS: Final = {"mixed": "bf16", "amp_bf16": "bf16", "amp_fp8": "fp8", "fp8-cs": "fp8", "mxfp8": "fp8"}
"""Other names of the precisions: mixed ones keep their weights in 32 bit and multiply as said."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One row. `microbatch` and `virtual_stages` None: not published; `step_s` None: not known.

    release: of the software that ran it; empty where the row does not say.
    """

    row: int
    source: str
    name: str
    spec: ModelSpec
    accelerator: Accelerator
    num_gpus: int
    gpus_per_node: int
    node_network_bytes_per_s: float
    precision: str
    sequence_length: int
    global_batch: int
    microbatch: int | None
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    context_parallel: int
    expert_parallel: int
    virtual_stages: int | None
    recompute: Recompute
    zero_stage: int
    step_s: float | None
    memory_bytes: float | None = None
    drops_tokens: bool = False
    note: str = ""
    block_scales: bool = False
    release: str = ""

    @property
    def job(self) -> tuple[object, ...]:
        """What two rows share that are plans of one job on the same machines."""
        return (
            self.source, self.spec, self.accelerator.name, self.num_gpus, self.precision, self.sequence_length,
            self.global_batch,
        )  # fmt: skip

    @property
    def layout(self) -> tuple[object, ...]:
        """What makes two rows of one job different plans; software and what else no column says are not in it."""
        return (
            self.microbatch, self.tensor_parallel, self.pipeline_parallel, self.data_parallel,
            self.context_parallel, self.expert_parallel, self.virtual_stages, self.recompute, self.zero_stage,
        )  # fmt: skip


def read_runs(path: str | Path) -> list[PublishedRun]:
    """Read a table of runs. Raises BadFile with every fault and its place, UsageError where there is no file."""
    runs, bad = read_table(path)
    if bad is not None:
        raise bad
    return runs


def read_table(path: str | Path) -> tuple[list[PublishedRun], BadFile | None]:
    """Return the rows of a table that can be read, and every fault of the others.

    Raises BadFile where no row can be read at all, UsageError where there is no file.
    """
    name, faults, runs = str(path), list[Fault](), list[PublishedRun]()
    lines = read_text(path).splitlines()
    table = csv.reader(lines)
    header = [column.strip() for column in next(table, [])]
    missing = [column for column in REQUIRED if column not in header]
    if missing:
        raise BadFile(
            [Fault(name, f"no column {column!r}", 1, 1) for column in missing],
            hint="the first line names the columns; docs/accuracy.md says what each holds",
        )
    for cells in table:
        if not cells:
            continue
        row = _Row(name, table.line_num, dict(zip(header, cells, strict=False)),
                   dict(zip(header, _columns(lines[table.line_num - 1]), strict=False)))  # fmt: skip
        if len(cells) != len(header):
            row.fault("", f"has {len(cells)} values where the header has {len(header)} columns")
        run = row.run(len(runs) + len({fault.line for fault in faults}))
        faults.extend(row.faults)
        if run is not None and not row.faults:
            runs.append(run)
    if not runs and not faults:
        faults.append(Fault(name, "has no rows", 1, 1))
    bad = None
    if faults:
        bad = BadFile(faults, hint="mend these values; docs/accuracy.md says what each column holds")
        if not runs:
            raise bad
    return runs, bad


def _columns(line: str) -> Iterator[int]:
    """Yield at which character each value of a line begins, counted from 1."""
    yield 1
    is_quoted = False
    for place, letter in enumerate(line, 1):
        is_quoted ^= letter == '"'
        if letter == "," and not is_quoted:
            yield place + 1


class _Row:
    """The values of one row by column; faults are collected, not raised."""

    def __init__(self, path: str, line: int, cells: Mapping[str, str], columns: Mapping[str, int]) -> None:
        self.path, self.line, self.columns = path, line, columns
        self.cells = {
            name: "" if text.strip().lower() in _NOTHING else text.strip() for name, text in cells.items()
        }
        self.faults: list[Fault] = []

    def fault(self, column: str, message: str) -> None:
        """Note a fault at the value of a column."""
        self.faults.append(Fault(self.path, message, self.line, self.columns.get(column, 1), where=column))

    def run(self, row: int) -> PublishedRun | None:
        """Return the row as a run; None, with faults, where a value cannot be read or values contradict."""
        spec, card = self._spec(), self._card()
        network_gbps, step_s = self._positive("node_network_gbps"), self._positive("step_s")
        memory_gib = self._positive("memory_gib")
        counts = {
            column: self._whole(column)
            for column in ("num_gpus", "gpus_per_node", "sequence", "global_batch", "tp", "pp", "dp")
        }
        microbatch, virtual = self._free("microbatch"), self._free("virtual_stages")
        context, experts = self._whole("cp", default=1), self._whole("ep", default=1)
        zero = self._whole("zero", default=0, least=0, most=3)
        precision = self._choice("precision", tuple(PRECISION_BYTES), "bf16", _PRECISIONS)
        recompute = self._choice("recompute", tuple(_RECOMPUTE), "none")
        source = self.cells.get("source", "")
        again = _RECOMPUTE.get(recompute, Recompute.NONE)
        if recompute == "none":
            again = next((how for who, how in _NEVER_NONE.items() if source.casefold().startswith(who)), again)
            if spec is not None and spec.latent is not None:
                again = Recompute.SELECTIVE
        if network_gbps is None and not self.cells["node_network_gbps"]:
            self.fault("node_network_gbps", "is empty; write the Gbit/s of a node, one way")
        if self.faults or spec is None or card is None or network_gbps is None:
            return None
        result = PublishedRun(
            row=row, source=source, name=self.cells.get("name", ""), spec=spec,
            accelerator=card, num_gpus=counts["num_gpus"], gpus_per_node=counts["gpus_per_node"],
            node_network_bytes_per_s=network_gbps * 1e9 / 8, precision=precision,
            sequence_length=counts["sequence"], global_batch=counts["global_batch"], microbatch=microbatch,
            tensor_parallel=counts["tp"], pipeline_parallel=counts["pp"], data_parallel=counts["dp"],
            context_parallel=context, expert_parallel=experts, virtual_stages=virtual,
            recompute=again, zero_stage=zero, step_s=step_s, drops_tokens=self._drops_tokens(),
            note=self.cells.get("note", ""), release=self._release(),
            block_scales=self.cells["precision"].lower() == "mxfp8",
            memory_bytes=None if memory_gib is None else memory_gib * 2**30,
        )  # fmt: skip
        self._contradictions(result)
        return result

    def _contradictions(self, run: PublishedRun) -> None:
        tp, pp, dp, cp = run.tensor_parallel, run.pipeline_parallel, run.data_parallel, run.context_parallel
        devices = tp * pp * dp * cp
        if devices != run.num_gpus:
            pieces = f"tp {tp} x pp {pp} x dp {dp}" + (f" x cp {cp}" if cp > 1 else "")
            self.fault("num_gpus", f"{pieces} is {devices} GPUs, not {run.num_gpus}")
        if run.spec.divided_heads % tp:
            self.fault("tp", f"{run.spec.divided_heads} heads are not a multiple of tensor parallel {tp}")
        if tp > run.gpus_per_node:
            self.fault("tp", f"tensor parallel {tp} does not fit a node of {run.gpus_per_node} GPUs")
        virtual, deepest = run.virtual_stages or 1, -(-run.spec.num_layers // pp)
        if pp > run.spec.num_layers or virtual > deepest:
            # Some count embedding and head as layers: the last chunk may be short.
            self.fault("pp", f"{pp * virtual} stages (virtual ones counted) for {run.spec.num_layers} layers")
        if (run.microbatch or 1) * dp > run.global_batch:
            self.fault("global_batch", f"{run.global_batch} sequences are fewer than microbatch x dp")
        experts = run.spec.experts.num_experts if run.spec.experts else 1
        if run.expert_parallel > experts:
            self.fault("ep", f"{experts} experts are fewer than expert parallel {run.expert_parallel}")
        elif experts % run.expert_parallel:
            self.fault("ep", f"{experts} experts are not a multiple of expert parallel {run.expert_parallel}")
        elif dp * tp * cp % run.expert_parallel:
            self.fault("ep", f"expert parallel {run.expert_parallel} does not divide dp x tp x cp {dp * tp * cp}")
        longest = run.spec.max_sequence_length
        if longest is not None and run.sequence_length > longest:
            self.fault("sequence", f"{run.spec.name} has learned positions for {longest} tokens only")
        if run.accelerator.peak_flops(run.precision) is None:
            self.fault("precision", f"no {run.precision} rate is known of {run.accelerator.name}")

    def _release(self) -> str:
        """Return the release of the software that a row says, in a column of its own or in its name."""
        named = _RELEASE.search(self.cells.get("name", ""))
        return self.cells.get("release") or (named[0] if named else "")

    def _drops_tokens(self) -> bool:
        """Whether the name or the note of a row says that experts drop tokens."""
        text = " ".join(self.cells.get(column, "") for column in ("name", "note"))
        return _DROPS.search(text) is not None and _DROPS_NONE.search(text) is None

    def _spec(self) -> ModelSpec | None:
        text = self.cells["model"]
        pairs = [word.partition("=") for word in text.split()]
        try:
            if "=" not in text:
                short = text.rpartition("/")[2]  # of a Hugging Face name: owner and model
                return model(short if short.casefold() in model_names() else text)
            if bad := [word for word, equals, value in pairs if not (equals and value)]:
                raise UsageError(f"{bad[0]!r} is not a pair: write key=value")
            keys = {key: _value(value) for key, _, value in pairs}
            kind = keys.pop("kind", None)
            if kind == "gpt":
                return _gpt(keys)
            if kind == "config":
                return model_from_keys(keys, path=self.path, name=self.cells.get("name") or "config")
            raise UsageError("key=value pairs begin with kind=gpt or kind=config")
        except BadFile as error:
            for fault in error.faults:
                self.fault("model", f"{fault.where}: {fault.message}" if fault.where else fault.message)
        except UsageError as error:
            self.fault("model", str(error))
        return None

    def _card(self) -> Accelerator | None:
        try:
            card = accelerator(self.cells["accelerator"])
        except UsageError as error:
            self.fault("accelerator", str(error))
            return None
        if card.interconnect_bytes_per_s is None:
            self.fault("accelerator", f"the interconnect of {card.name} is not known")
        return card

    def _free(self, column: str) -> int | None:
        return self._whole(column) if self.cells.get(column) else None

    def _whole(self, column: str, *, default: int | None = None, least: int = 1, most: int = _MOST) -> int:
        text = self.cells.get(column, "")
        if not text and default is not None:
            return default
        if text.endswith(".0"):
            text = text[:-2]  # of a table that went through floats
        if not text.isdecimal() or not least <= int(text) <= most:
            self.fault(column, f"{text!r} is not a whole number from {least} to {most}")
            return max(1, least)
        return int(text)

    def _positive(self, column: str) -> float | None:
        text = self.cells.get(column, "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            self.fault(column, f"{text!r} is not a positive number")
            return None
        return value

    def _choice(
        self, column: str, known: tuple[str, ...], default: str, also: Mapping[str, str] | None = None
    ) -> str:
        text = self.cells.get(column, "").lower() or default
        text = (also or {}).get(text, text)
        if text not in known:
            close = closest(text, known)
            meant = f" (did you mean {close!r}?)" if close else ""
            self.fault(column, f"{text!r} is not one of {', '.join(known)}{meant}")
        return text


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _gpt(keys: Mapping[str, Any]) -> ModelSpec:
    """Return a GPT of Megatron-LM's shape: LayerNorm, biases, an MLP without gate, tied embeddings."""
    unknown = [key for key in keys if key not in _GPT_SIZES]
    if unknown:
        raise UsageError(f"kind=gpt has no key {unknown[0]!r} (known: {', '.join(_GPT_SIZES)})")
    sizes = {"kv_heads": keys.get("heads"), **keys}
    bad = [key for key in _GPT_SIZES if type(sizes.get(key)) is not int or not 0 < sizes[key] <= _MOST]
    if bad:
        raise UsageError(f"kind=gpt needs {', '.join(bad)}, each a whole number")
    if sizes["hidden"] % sizes["heads"] or sizes["heads"] % sizes["kv_heads"]:
        raise UsageError("hidden is not a multiple of heads, or heads not of kv_heads")
    return ModelSpec(
        name="gpt", model_type="gpt", hidden_size=sizes["hidden"], num_layers=sizes["layers"],
        num_heads=sizes["heads"], num_kv_heads=sizes["kv_heads"], head_dim=sizes["hidden"] // sizes["heads"],
        vocab_size=sizes["vocab"], intermediate_size=sizes["ffn"], embedding_size=sizes["hidden"],
        gated_mlp=False, tied_embeddings=True, norm_bias=True, qkv_bias=True, output_bias=True, mlp_bias=True,
    )  # fmt: skip
