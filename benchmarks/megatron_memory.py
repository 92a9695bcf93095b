"""Hold our memory of a stage against the estimate that Megatron-LM prints of the same layout.

    python benchmarks/megatron_memory.py FOLDER

FOLDER is your own Megatron-LM checkout. Its megatron/training/theoretical_memory_usage.py is run as it is, without
torch, for the first stage of each layout below. That file counts weights, gradients and optimizer, and activations
under sequence parallelism and selective recomputation; our constant for what else a device holds is left out.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from strata.simulate.memory import FIXED_BYTES, StageShape, stage_bytes, state_bytes
from strata.workload import huggingface
from strata.workload.job import Recompute, Schedule, TrainingJob
from strata.workload.layer_table import layer_table
from strata.workload.model import ModelSpec
from strata.workload.plan import Pipeline, Stage, TrainingPlan

FILE = "megatron/training/theoretical_memory_usage.py"


@dataclass(frozen=True)
class Layout:
    model: str
    sequence_length: int
    tensor: int
    pipeline: int
    data: int
    microbatch_size: int
    microbatches: int
    zero_stage: int = 1
    virtual_stages: int = 1

    def __str__(self) -> str:
        virtual = f" v{self.virtual_stages}" if self.virtual_stages > 1 else ""
        shape = f"TP{self.tensor} PP{self.pipeline}{virtual} DP{self.data} ZeRO-{self.zero_stage}"
        return f"{self.model}, {shape}, {self.microbatch_size} x {self.sequence_length}"


LAYOUTS = (
    Layout("gpt-neox-20b", 2048, tensor=4, pipeline=2, data=1, microbatch_size=4, microbatches=8, zero_stage=0),
    Layout("llama-3.1-8b", 8192, tensor=2, pipeline=1, data=8, microbatch_size=1, microbatches=16),
    Layout("llama-3.1-70b", 8192, tensor=8, pipeline=4, data=4, microbatch_size=1, microbatches=32),
    Layout("llama-3.1-405b", 8192, 8, 9, 8, microbatch_size=1, microbatches=36, virtual_stages=2),
    Layout("qwen3-30b-a3b", 4096, tensor=2, pipeline=4, data=4, microbatch_size=1, microbatches=16),
)


def estimator(folder: str) -> ModuleType:
    """Return Megatron's module. What it imports of its package takes torch; it needs two small things of that."""
    path = Path(folder) / FILE
    if not path.is_file():
        sys.exit(f"{path}: no such file; FOLDER is a Megatron-LM checkout, as of 2023 or later")
    package, utils = ModuleType("megatron_training"), ModuleType("megatron_training.utils")
    package.__path__ = []
    vars(utils).update(is_hybrid_model=lambda _: False, print_rank_0=lambda _: None)
    sys.modules.update({"megatron_training": package, "megatron_training.utils": utils})
    spec = importlib.util.spec_from_file_location("megatron_training.memory", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(layout: Layout, spec: ModelSpec) -> Namespace:
    """Return the arguments Megatron would have parsed; its vocabulary is padded to 128 rows a tensor rank."""
    moe, rows = spec.experts, 128 * layout.tensor
    return Namespace(
        num_layers=spec.num_layers, hidden_size=spec.hidden_size, ffn_hidden_size=spec.intermediate_size,
        num_attention_heads=spec.num_heads, kv_channels=spec.head_dim,
        group_query_attention=spec.num_kv_heads != spec.num_heads, num_query_groups=spec.num_kv_heads,
        multi_latent_attention=False, swiglu=spec.gated_mlp, add_bias_linear=spec.mlp_bias,
        normalization="LayerNorm" if spec.norm_bias else "RMSNorm",
        padded_vocab_size=math.ceil(spec.vocab_size / rows) * rows,
        untie_embeddings_and_output_weights=not spec.tied_embeddings,
        num_experts=moe.num_experts if moe else None, moe_router_topk=moe.experts_per_token if moe else 2,
        moe_ffn_hidden_size=moe.intermediate_size if moe else None, moe_layer_freq=1,
        moe_shared_expert_intermediate_size=None, moe_latent_size=None, mtp_num_layers=None,
        tensor_model_parallel_size=layout.tensor, pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_stages if layout.virtual_stages > 1 else None,
        data_parallel_size=layout.data, world_size=layout.tensor * layout.pipeline * layout.data,
        expert_tensor_parallel_size=layout.tensor, expert_model_parallel_size=1,
        use_distributed_optimizer=layout.zero_stage == 1, sequence_parallel=layout.tensor > 1,
        recompute_granularity="selective", seq_length=layout.sequence_length,
        micro_batch_size=layout.microbatch_size,
    )  # fmt: skip


def theirs(module: ModuleType, layout: Layout, spec: ModelSpec) -> tuple[float, float, float]:
    """Return parameters, bytes of weights, gradients and optimizer, and bytes of activations, of one device."""
    given: Any = arguments(layout, spec)
    state = float(module.compute_weight_and_optimizer_memory(given))
    per_param = 6 + 12 / layout.data if layout.zero_stage else 18
    return state / per_param, state, float(module.compute_activation_memory(given, layout.microbatches))


def ours(layout: Layout, spec: ModelSpec) -> tuple[float, float, float]:
    """Return the same of the first stage, whose share of the transformer layers is the even one."""
    job = TrainingJob(
        spec.name, layer_table(spec, layout.sequence_length, 2), layout.sequence_length, spec.num_heads,
        layout.microbatch_size * layout.microbatches * layout.data,
    )  # fmt: skip
    blocks, edge = spec.num_layers // layout.pipeline, layout.pipeline - 1
    counts = [blocks + (s == 0) + (s == edge) for s in range(layout.pipeline)]
    stages = tuple(
        Stage("a", sum(counts[:s]), count, layout.tensor, warmup=edge - s) for s, count in enumerate(counts)
    )
    pipeline = Pipeline(stages, layout.data, layout.microbatches)
    plan = TrainingPlan(
        (pipeline,), layout.microbatch_size, zero_stage=layout.zero_stage, recompute=Recompute.NONE,
        schedule=Schedule.INTERLEAVED if layout.virtual_stages > 1 else Schedule.ONE_F_ONE_B,
        virtual_stages=layout.virtual_stages,
    )  # fmt: skip
    shape = StageShape.of(plan, pipeline, 0)
    params = float(job.layers.params_before[counts[0]]) / layout.tensor
    state = state_bytes(job, params, shards=shape.shards, zero_stage=shape.zero_stage)
    return params, state, stage_bytes(job, 0, counts[0], shape=shape) - state - FIXED_BYTES


def main(folder: str) -> None:
    module = estimator(folder)
    print(f"{'first stage, one device':<32}{'ours':>12}{'Megatron':>12}{'ratio':>8}")
    for layout in LAYOUTS:
        spec = huggingface.model(layout.model)
        print(layout)
        rows = ("parameters [G]", "weights to optimizer [GB]", "activations [GB]")
        for name, mine, other in zip(rows, ours(layout, spec), theirs(module, layout, spec), strict=True):
            print(f"  {name:<30}{mine / 1e9:>12.3f}{other / 1e9:>12.3f}{mine / other:>8.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
