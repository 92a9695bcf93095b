# ruff: noqa: T201
"""Programs that people run, in a slice on a real GPU; skipped where they, or what they need, are not installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slicing.gpu.machine import LIMIT, PROGRAMS, environment, run, why_no_gpu

pytestmark = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")
MIB = 1 << 20


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}")
    return found


def need_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}")


def output(*command: str, env: dict[str, str], timeout_s: float = 600) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s)
    print(f"\n{Path(command[0]).name} {done.stdout[-1000:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def listed() -> str:
    return subprocess.run([need("nvidia-smi"), "-L"], capture_output=True, text=True, timeout=60).stdout


def test_a_context_is_measured_on_the_host(ledger):
    from strata.fleet.ledger import read_ledger

    run("resets.py", env=environment(ledger, STRATA_CONTEXT_BYTES=""))
    (use,) = read_ledger(ledger, name="s")
    print(f"\na context of this device and driver: {use.context_bytes / MIB:.0f} MiB, {use.context_trust}")
    if use.context_trust != "measured":
        pytest.xfail("NVML does not list this process: a container?")
    assert 16 * MIB < use.context_bytes < 2048 * MIB


def test_nvidia_smi_shows_the_slice(ledger):
    query = ("--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits", "-i", "0")
    total, used = output(need("nvidia-smi"), *query, env=environment(ledger)).split(",")
    assert (int(total), int(used)) == (LIMIT // MIB, 0)


@pytest.mark.parametrize(
    "tool", [("nsys", "profile", "-o"), ("compute-sanitizer", "--log-file")], ids=lambda tool: tool[0]
)
def test_a_tool_that_injects_itself_runs_and_the_limit_holds(ledger, tmp_path, tool):
    words = (need(tool[0]), *tool[1:], str(tmp_path / "out"), sys.executable, str(PROGRAMS / "driver.py"))
    said = output(*words, env=environment(ledger))
    blocks = int(re.search(r'"plain": \[(\d+),', said)[1])
    assert 15 <= blocks <= 16


def test_the_run_time_linked_statically(ledger, tmp_path):
    source = tmp_path / "static.cu"
    source.write_text(
        "#include <cstdio>\nint main() { void *p; int n = 0;"
        f' while (n < 64 && cudaMalloc(&p, {256 * MIB}) == cudaSuccess) n++; printf("%d", n); }}'
    )
    subprocess.run([need("nvcc"), "-cudart", "static", "-o", tmp_path / "static", source], check=True, timeout=300)
    assert 15 <= int(output(str(tmp_path / "static"), env=environment(ledger))) <= 16


NCCL = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
value = torch.full((64 << 20,), float(rank + 1), device="cuda")

def reduce():
    for _ in range(5):
        dist.all_reduce(value)
        value.div_(dist.get_world_size())
    torch.cuda.synchronize()

reduce()
blocks = []
try:
    while True:
        blocks.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError:
    pass
reduce()
print("blocks", len(blocks), "mean", value[0].item())
dist.destroy_process_group()
"""


def test_nccl_takes_its_buffers_from_the_slice(ledger, tmp_path):
    need_module("torch")
    ranks = min(2, listed().count("GPU "))
    program = tmp_path / "nccl.py"
    program.write_text(NCCL)
    command = (sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", str(program))
    said = re.findall(r"blocks (\d+) mean ([\d.]+)", output(*command, env=environment(ledger)))
    assert [float(mean) for _, mean in said] == [(ranks + 1) / 2] * ranks
    assert all(12 <= int(blocks) <= 15 for blocks, _ in said)


JAX = """
import jax, jax.numpy as jnp
x = jnp.ones((4096, 4096), jnp.bfloat16)
print("sum", float((x @ x)[0, 0]))
"""


def test_jax_takes_its_part_of_the_slice(ledger):
    need_module("jax")
    assert "sum 4096.0" in output(sys.executable, "-c", JAX, env=environment(ledger))


def test_vllm_serves_random_weights_within_the_slice(ledger):
    need_module("vllm")
    model = os.environ.get("STRATA_TEST_MODEL")
    if not model:
        pytest.skip("needs STRATA_TEST_MODEL, a folder with a small model's config and tokenizer")
    code = (
        "from vllm import LLM, SamplingParams\n"
        f"llm = LLM({model!r}, load_format='dummy', max_model_len=512, gpu_memory_utilization=0.8)\n"
        "(said,) = llm.generate('a', SamplingParams(max_tokens=8, ignore_eos=True))\n"
        "print('tokens', len(said.outputs[0].token_ids))"
    )
    assert "tokens 8" in output(sys.executable, "-c", code, env=environment(ledger))


def test_llama_cpp_loads_within_the_slice(ledger):
    model = os.environ.get("STRATA_TEST_GGUF")
    if not model:
        pytest.skip("needs STRATA_TEST_GGUF, a small model's file")
    output(need("llama-cli"), "-m", model, "-ngl", "99", "-n", "8", "-p", "a", "-no-cnv", env=environment(ledger))


def test_a_mig_instance_is_limited_by_its_own_name(ledger):
    instances = re.findall(r"UUID: (MIG-[\w-]+)", listed())
    if not instances:
        pytest.skip("needs a GPU in MIG mode")
    told = run("driver.py", env=environment(ledger, CUDA_VISIBLE_DEVICES=instances[0]))
    assert 15 <= told["plain"][0] <= 16


def test_under_mps_the_limit_holds_too(ledger):
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if not (pipes / "control").exists():
        pytest.skip("needs nvidia-cuda-mps-control -d")
    assert 15 <= run("driver.py", env=environment(ledger))["plain"][0] <= 16
