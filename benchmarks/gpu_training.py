"""Train models with the Hugging Face Trainer on the GPU that is here, and say what a step took.

    python benchmarks/gpu_training.py OUT.csv [NAME ...]

Writes rows in the form of published_runs.csv, so that `strata bench published OUT.csv` holds our predictions
against them. Models have random weights, data is random, and nothing is downloaded; needs torch and transformers.
Weights, gradients and AdamW's moments are in 32 bit, products in bf16 by autocast, attention is PyTorch's fused
one: what `Trainer(bf16=True)` does. A step's time is the median of those after WARM_UPS; memory is the most that
PyTorch reserved.
"""

from __future__ import annotations

import csv
import gc
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from strata.fleet.catalogue import accelerator

MODELS = Path(__file__).parents[1] / "src/strata/workload/models"
WARM_UPS, STEPS = 3, 8
COLUMNS = (
    "source", "name", "grade", "model", "accelerator", "num_gpus", "gpus_per_node", "node_network_gbps",
    "precision", "sequence", "global_batch", "microbatch", "tp", "pp", "dp", "cp", "ep", "virtual_stages",
    "recompute", "zero", "step_s", "memory_gib", "note",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    model: str
    sequence: int
    microbatch: int
    accumulate: int
    recompute: str = "none"
    layers: int | None = None
    compiled: bool = False

    @property
    def name(self) -> str:
        parts = [self.model, f"{self.layers} layers" if self.layers else ""]
        parts += [
            f"mb{self.microbatch}x{self.accumulate}",
            self.recompute,
            "compile" if self.compiled else "eager",
        ]
        return " ".join(part for part in parts if part)


_SMALL = Run("qwen3-0.6b", 4096, 4, 2)
_CUT = Run("llama-3.1-8b", 4096, 1, 4, layers=6)
RUNS = (
    _SMALL,
    replace(_SMALL, microbatch=2),
    replace(_SMALL, recompute="full"),
    _CUT,
    replace(_CUT, microbatch=2),
    replace(_CUT, microbatch=2, recompute="full"),
    replace(_CUT, sequence=8192),
    Run("gpt2", 1024, 16, 2),
    Run("opt-350m", 2048, 8, 1),
    replace(_SMALL, compiled=True),
    replace(_CUT, compiled=True),
    Run("qwen3-30b-a3b", 4096, 1, 4, layers=3),
)


class RandomTokens:
    def __init__(self, vocab_size: int, sequence: int, count: int) -> None:
        import torch

        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(vocab_size, (count, sequence), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[at], "labels": self.tokens[at]}


def clock(ends_s: list[float]) -> Any:
    """Return what a Trainer calls back: it writes down when each optimizer step had been done by the device."""
    import torch
    import transformers

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_args: Any, **_more: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends_s.append(time.perf_counter())

    return Clock()


def config_of(run: Run) -> dict[str, Any]:
    config = json.loads((MODELS / f"{run.model}.json").read_text())
    if run.layers:
        config["num_hidden_layers"] = run.layers
    return config


def trained(run: Run, *, steps: int = WARM_UPS + STEPS) -> tuple[list[float], float]:
    """Return the seconds of each step, the first left out, and the most GiB that were reserved."""
    import torch
    import transformers

    config = config_of(run)
    kind = config.pop("model_type")
    model_config = transformers.AutoConfig.for_model(kind, **config, use_cache=False)
    on_gpu = torch.cuda.is_available()
    with torch.device("cuda" if on_gpu else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(model_config, dtype=torch.float32)
    count = steps * run.microbatch * run.accumulate
    ends_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=run.microbatch, bf16=True,
            gradient_accumulation_steps=run.accumulate, gradient_checkpointing=run.recompute == "full",
            torch_compile=run.compiled, optim="adamw_torch_fused", max_grad_norm=1.0, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=not on_gpu,
        )  # fmt: skip
        data = RandomTokens(model_config.vocab_size, run.sequence, count)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock(ends_s)]).train()
    reserved = torch.cuda.max_memory_reserved() if on_gpu else 0
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return [end - begin for begin, end in pairwise(ends_s)], reserved / 2**30


def row(run: Run, step_s: float, memory_gib: float, *, card: str, note: str = "") -> dict[str, Any]:
    config = config_of(run)
    model = run.model
    if run.layers:
        keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                "intermediate_size", "vocab_size", "tie_word_embeddings", "num_experts", "num_experts_per_tok",
                "moe_intermediate_size", "model_type")  # fmt: skip
        model = "kind=config " + " ".join(f"{key}={str(config[key]).lower()}" for key in keys if key in config)
    return {
        "source": "transformers", "name": run.name, "grade": "measured", "model": model, "accelerator": card,
        "num_gpus": 1, "gpus_per_node": 1, "node_network_gbps": 400, "precision": "bf16", "sequence": run.sequence,
        "global_batch": run.microbatch * run.accumulate, "microbatch": run.microbatch, "tp": 1, "pp": 1, "dp": 1,
        "cp": 1, "ep": 1, "virtual_stages": 1, "recompute": run.recompute, "zero": 0,
        "step_s": f"{step_s:.4f}" if step_s else "", "memory_gib": f"{memory_gib:.2f}" if memory_gib else "",
        "note": note,
    }  # fmt: skip


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python benchmarks/gpu_training.py OUT.csv [NAME ...]")
    import torch
    import transformers

    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device here")
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    note = f"torch {torch.__version__}, transformers {transformers.__version__}"
    transformers.utils.logging.set_verbosity_error()
    card = accelerator(torch.cuda.get_device_name()).name
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for run in RUNS:
            if wanted and not any(word in run.name for word in wanted):
                continue
            begun = time.monotonic()
            try:
                steps, memory_gib = trained(run)
            except (RuntimeError, ValueError, TypeError) as error:  # the others still count
                print(f"{run.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                gc.collect()
                torch.cuda.empty_cache()
                continue
            step_s = statistics.median(steps[WARM_UPS - 1 :])
            writer.writerow(row(run, step_s, memory_gib, card=card, note=note))
            file.flush()
            print(
                f"{run.name} s{run.sequence}: {step_s:.4f} s (steps {min(steps[WARM_UPS - 1 :]):.4f} to"
                f" {max(steps[WARM_UPS - 1 :]):.4f}), {memory_gib:.2f} GiB reserved,"
                f" {time.monotonic() - begun:.0f} s in all",
                flush=True,
            )


if __name__ == "__main__":
    main()
