"""Launch scripts for vLLM and SGLang: they run, and every rank gets the layers of the plan."""

import os
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import Infeasible, UsageError
from strata.serving.export import sglang, vllm
from strata.serving.export.launch import ranks_of
from strata.serving.gateway.discovery import Backend, read_backend
from tests.serving.planning.plans import planned

EVEN = planned((("a/0", 8, 30), ("a/1", 8, 25), ("b/0", 8, 25)), (("c/0", 8, 80),), model="llama-3.1-70b")
UNEQUAL = planned((("a/0", 8, 41), ("b/0", 4, 20)))
ENGINES = pytest.mark.parametrize("engine", [vllm, sglang], ids=["vllm", "sglang"])
TOGETHER = """
echo . >> "$0.started"
until (($(wc -l < "$0.started") >= ${RANKS:-1})); do sleep 0.01; done
"""
"""The first rank of a node that ends stops the others: none does before all have started."""
FAKES = {
    "vllm": 'echo "VLLM ${VLLM_PP_LAYER_PARTITION:-} ${CUDA_VISIBLE_DEVICES:-all} $*"' + TOGETHER,
    "python3": 'echo "SGLANG ${SGLANG_PP_LAYER_PARTITION:-} $*"' + TOGETHER,
    "ray": 'echo "RAY $*"',
    "strata": 'echo "STRATA $*"',
}


def altered(entry, **changes):
    return entry.model_copy(update=changes)


def with_nodes(plan, *nodes):
    return altered(plan, fleet=altered(plan.fleet, nodes=nodes))


def write(folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name, script in FAKES.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (bin_folder / name).chmod(0o755)


def run(folder, script, *arguments, **variables):
    """Run a script with fakes of the engines, which print how they were called: a set of lines, the exit code."""
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["bash", folder / script, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def option(line, name):
    found = re.search(rf"{name} (\S+)", line)
    return found and found[1]


@ENGINES
def test_groups_of_one_machine_have_devices_and_ports_of_their_own(tmp_path, engine):
    plan = planned((("a/0.0", 4, 80),), (("a/0.1", 4, 80),))
    first, second = plan.fleet.nodes
    cut = with_nodes(plan, altered(first, first_device=0), altered(second, first_device=4))
    files = engine.render(cut).files
    write(tmp_path, files)
    lines = []
    for name in files:
        if name != "gateway.sh":
            code, out, err = run(tmp_path, name, MODEL="m")
            assert (code, err) == (0, "")
            lines += out
    assert [option(line, "--port") for line in lines] == [str(engine.PORT), str(engine.PORT + 1)]
    if engine is vllm:
        assert [line.split()[1] for line in lines] == ["0,1,2,3", "4,5,6,7"]
    else:
        assert [option(line, "--base-gpu-id") for line in lines] == [None, "4"]
    _, out, _ = run(tmp_path, "gateway.sh", HEAD_1="h", HEAD_2="h")
    assert f"http://h:{engine.PORT}," in out[0]
    assert f"http://h:{engine.PORT + 1}," in out[0]


@ENGINES
@pytest.mark.parametrize("plan", [EVEN, UNEQUAL, planned((("x'\"$(id)`\n;/0", 6, 10),))])
def test_every_script_is_one_that_bash_reads(tmp_path, engine, plan):
    files = engine.render(plan).files
    write(tmp_path, files)
    assert len(files) == sum(len(pipeline.stages) for pipeline in plan.pipelines) + 1
    for name in files:
        checked = subprocess.run(["bash", "-n", tmp_path / name], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@ENGINES
def test_a_name_in_a_plan_is_not_run_by_the_shell(tmp_path, engine):
    name = f"$(touch {tmp_path}/owned)`touch {tmp_path}/owned`"
    plan = planned(((f"a{name}", 8, 10), (f"b{name}\ntouch {tmp_path}/owned", 8, 10)), model=f"m{name}")
    write(tmp_path, engine.render(plan).files)
    for script in engine.render(plan).files:
        run(tmp_path, script, MODEL="m", HEAD_ADDR="h")
        run(tmp_path, script)
    assert not (tmp_path / "owned").exists()


def test_vllm_nodes_are_numbered_as_the_stages_are(tmp_path):
    write(tmp_path, vllm.render(EVEN).files)
    for rank, node in enumerate(["a-0", "a-1", "b-0"]):
        code, (line,), _ = run(tmp_path, f"pipeline-1-stage-{rank + 1}-{node}.sh", MODEL="m", HEAD_ADDR="10.0.0.1")
        assert code == 0
        assert line.startswith("VLLM 30,25,25 all serve m ")
        assert option(line, "--tensor-parallel-size") == "8"
        assert option(line, "--pipeline-parallel-size") == option(line, "--nnodes") == "3"
        assert option(line, "--node-rank") == str(rank)
        assert option(line, "--master-addr") == "10.0.0.1"
        assert ("--headless" in line) == (rank > 0)
        assert ("--port 8000" in line) == (rank == 0)


def test_a_pipeline_of_one_node_needs_no_partition_and_no_head(tmp_path):
    write(tmp_path, vllm.render(EVEN).files)
    code, (line,), _ = run(tmp_path, "pipeline-2-stage-1-c-0.sh", "--seed", "1", MODEL="m", PORT="9000")
    assert code == 0
    assert line.startswith("VLLM  all serve m --served-model-name llama-3.1-70b")
    assert line.endswith(" --seed 1")
    assert "--port 9000" in line
    assert "nnodes" not in line
    assert "pipeline-parallel" not in line


def test_sglang_nodes_are_numbered_as_the_stages_are(tmp_path):
    write(tmp_path, sglang.render(EVEN).files)
    for rank, node in enumerate(["a-0", "a-1", "b-0"]):
        code, (line,), _ = run(tmp_path, f"pipeline-1-stage-{rank + 1}-{node}.sh", MODEL="m", HEAD_ADDR="10.0.0.1")
        assert code == 0
        assert line.startswith("SGLANG 30,25,25 -m sglang.launch_server --model-path m ")
        assert (option(line, "--tp-size"), option(line, "--pp-size"), option(line, "--nnodes")) == ("8", "3", "3")
        assert option(line, "--node-rank") == str(rank)
        assert option(line, "--dist-init-addr") == "10.0.0.1:20000"


@ENGINES
def test_context_and_sequences_are_the_plans(tmp_path, engine):
    write(tmp_path, engine.render(EVEN).files)
    context = "--max-model-len" if engine is vllm else "--context-length"
    sequences = "--max-num-seqs" if engine is vllm else "--max-running-requests"
    _, (line,), _ = run(tmp_path, "pipeline-2-stage-1-c-0.sh", MODEL="m")
    assert (option(line, context), option(line, sequences)) == ("1280", "40")
    _, (line,), _ = run(tmp_path, "pipeline-2-stage-1-c-0.sh", MODEL="m", CONTEXT="8192")
    assert option(line, context) == "8192"


@ENGINES
@pytest.mark.parametrize(
    ("limit", "held", "longest"),
    [(0, 0, 1280), (131072, 0, 131072), (131072, 500_000, 131072), (131072, 40_000, 40_000), (0, 40_000, 40_000)],
)
def test_the_longest_request_is_the_models_as_far_as_memory_holds_it(tmp_path, engine, limit, held, longest):
    """Not the mean prompt and output, which would refuse half of all requests."""
    plan = planned((("c/0", 8, 80),), context_limit=limit)
    plan = altered(plan, pipelines=tuple(altered(one, kv_tokens=held) for one in plan.pipelines))
    made = engine.render(plan)
    write(tmp_path, made.files)
    _, (line,), _ = run(tmp_path, "pipeline-1-stage-1-c-0.sh", MODEL="m")
    assert option(line, "--max-model-len" if engine is vllm else "--context-length") == str(longest)
    assert f"(default {longest}:" in made.files["pipeline-1-stage-1-c-0.sh"]
    assert any(f"more than {longest} tokens are refused" in note for note in made.notes)


@ENGINES
def test_what_must_be_set_is_asked_for(tmp_path, engine):
    write(tmp_path, engine.render(EVEN).files)
    code, _, told = run(tmp_path, "pipeline-1-stage-2-a-1.sh", MODEL="m")
    assert code != 0
    assert "HEAD_ADDR: set it to the address of a/0" in told
    code, _, told = run(tmp_path, "pipeline-2-stage-1-c-0.sh")
    assert code != 0
    assert "MODEL: set it to the folder or Hugging Face name of llama-3.1-70b" in told


def test_ray_starts_a_head_and_workers(tmp_path):
    write(tmp_path, vllm.render(EVEN).files)
    ray = {"MODEL": "m", "HEAD_ADDR": "10.0.0.1", "EXECUTOR": "ray"}
    code, (start, serve), _ = run(tmp_path, "pipeline-1-stage-1-a-0.sh", **ray)
    assert code == 0
    assert start == "RAY start --head --node-ip-address=10.0.0.1 --port=6379 --num-gpus=8"
    assert serve.startswith("VLLM 30,25,25 all serve m")
    assert serve.endswith("--distributed-executor-backend ray")
    assert "--nnodes" not in serve
    _, lines, _ = run(tmp_path, "pipeline-1-stage-2-a-1.sh", **ray)
    assert lines == ["RAY start --address=10.0.0.1:6379 --num-gpus=8 --block"]


def test_ray_is_refused_where_it_would_give_a_node_the_layers_of_another(tmp_path):
    plan = planned((("a", 8, 30), ("b", 8, 20), ("c", 8, 30)))
    write(tmp_path, vllm.render(plan).files)
    for script in ("pipeline-1-stage-1-a.sh", "pipeline-1-stage-2-b.sh"):
        code, lines, told = run(tmp_path, script, MODEL="m", HEAD_ADDR="h", EXECUTOR="ray")
        assert (code, lines) == (2, [])
        assert "Ray orders stages 2 to 3 itself" in told


def test_a_node_with_more_devices_runs_more_ranks_and_that_is_said(tmp_path):
    engine = vllm.render(UNEQUAL)
    write(tmp_path, engine.files)
    assert "nodes of 8 and 4 devices and 64 heads to divide it is 4, so a/0 runs 2 ranks" in engine.notes[0]
    code, lines, _ = run(tmp_path, "pipeline-1-stage-1-a-0.sh", MODEL="m", HEAD_ADDR="h", RANKS="2")
    assert (code, len(lines)) == (0, 2)
    assert {line.split()[2] for line in lines} == {"0,1,2,3", "4,5,6,7"}
    assert {option(line, "--node-rank") for line in lines} == {"0", "1"}
    assert all(line.startswith("VLLM 21,20,20 ") and option(line, "--nnodes") == "3" for line in lines)
    _, (line,), _ = run(tmp_path, "pipeline-1-stage-2-b-0.sh", MODEL="m", HEAD_ADDR="h")
    assert option(line, "--node-rank") == "2"


def test_ranks_have_as_many_key_value_heads_each_or_a_copy_of_one():
    """Phi-4: 40 heads and 10 of keys and values, which engines refuse on 8 or on 4 ranks."""
    alone = planned((("a/0", 8, 40),))
    alone = altered(alone, job=altered(alone.job, num_heads=40))
    degrees = {
        kv_heads: ranks_of(altered(alone, job=altered(alone.job, kv_heads=kv_heads)))[0].tensor_parallel
        for kv_heads in ((), (8,), (2,), (10,), (2, 10))
    }
    assert degrees == {(): 8, (8,): 8, (2,): 8, (10,): 2, (2, 10): 2}


def test_layers_that_stay_together_are_one_rank_and_devices_stay_idle():
    alone = planned((("a/0", 8, 61),))
    alone = altered(alone, job=altered(alone.job, num_heads=4))
    assert len(ranks_of(alone)[0].hosts[0].layers) == 2
    whole = altered(alone, job=altered(alone.job, is_whole=True))
    assert ranks_of(whole)[0].hosts[0].layers == (61,)
    assert "4 devices stay idle" in vllm.render(whole).notes[0]


def test_sglang_ranks_of_one_node_take_other_devices_and_ports(tmp_path):
    write(tmp_path, sglang.render(UNEQUAL).files)
    _, lines, _ = run(tmp_path, "pipeline-1-stage-1-a-0.sh", MODEL="m", HEAD_ADDR="h", RANKS="2")
    assert {(option(line, "--base-gpu-id"), option(line, "--port")) for line in lines} == {
        (None, "30000"),
        ("4", "30001"),
    }


def test_a_rank_that_ends_ends_its_node(tmp_path):
    write(tmp_path, vllm.render(UNEQUAL).files)
    fake = tmp_path / "bin" / "vllm"
    fake.write_text('#!/bin/bash\n[[ "$*" == *headless* ]] && exit 7\nexec sleep 600\n')
    code, _, _ = run(tmp_path, "pipeline-1-stage-1-a-0.sh", MODEL="m", HEAD_ADDR="h")
    assert code == 7


def test_quantised_plans_say_so_to_the_engine():
    fp8 = planned((("a", 8, 10),), weights="fp8", kv="fp8")
    assert "--quantization fp8" in vllm.render(fp8).files["pipeline-1-stage-1-a.sh"]
    assert "--kv-cache-dtype fp8 " in vllm.render(fp8).files["pipeline-1-stage-1-a.sh"]
    assert "--kv-cache-dtype fp8_e4m3 " in sglang.render(fp8).files["pipeline-1-stage-1-a.sh"]
    int4 = vllm.render(planned((("a", 8, 10),), weights="int4"))
    assert "--quantization" not in int4.files["pipeline-1-stage-1-a.sh"]
    assert any("MODEL must be a checkpoint quantised so" in note for note in int4.notes)


@ENGINES
def test_a_pipeline_with_a_card_without_units_for_bf16_computes_in_half(engine):
    plan = planned((("a", 8, 5), ("b", 8, 5)), (("c", 8, 10),))
    cards = {"a": "L4", "b": "T4", "c": "L4"}
    plan = with_nodes(plan, *(altered(node, accelerator=cards[node.id]) for node in plan.fleet.nodes))
    assert {name: "--dtype half " in text for name, text in engine.render(plan).files.items()} == {
        "pipeline-1-stage-1-a.sh": True, "pipeline-1-stage-2-b.sh": True, "pipeline-2-stage-1-c.sh": False,
        "gateway.sh": False,
    }  # fmt: skip


def test_the_gateway_gets_every_pipeline_as_a_backend(tmp_path):
    write(tmp_path, vllm.render(EVEN).files)
    code, lines, _ = run(tmp_path, "gateway.sh", "--port", "80", HEAD_1="h1", HEAD_2="h2", PORT_2="81")
    assert code == 0
    _, first, second, rest = re.split(r" --backend |(?= --port)", lines[0])
    assert rest == " --port 80"
    assert read_backend(first) == Backend("http://h1:8000", slots=EVEN.pipelines[0].slots)
    assert read_backend(second) == Backend("http://h2:81", slots=EVEN.pipelines[1].slots)


@ENGINES
def test_a_plan_without_pipelines_is_refused(engine):
    with pytest.raises(Infeasible, match="no pipelines"):
        engine.render(planned())


@ENGINES
def test_a_pipeline_of_two_vendors_is_refused(engine):
    plan = planned((("a", 8, 10), ("b", 8, 10)))
    nodes = plan.fleet.nodes
    amd = altered(nodes[0], vendor="AMD"), altered(nodes[1], vendor="NVIDIA")
    with pytest.raises(UsageError, match="pipeline 1 has devices of AMD and NVIDIA"):
        engine.render(with_nodes(plan, *amd))
    assert engine.render(with_nodes(plan, amd[0], altered(amd[1], vendor="AMD"))).files


def test_devices_are_shown_as_their_vendor_does():
    nodes = [altered(node, vendor="AMD") for node in UNEQUAL.fleet.nodes]
    script = vllm.render(with_nodes(UNEQUAL, *nodes)).files["pipeline-1-stage-1-a-0.sh"]
    assert "HIP_VISIBLE_DEVICES=4,5,6,7 vllm serve" in script


@given(
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from([0, 12, 20, 64]),
)
def test_every_layer_is_on_one_rank_and_every_rank_on_devices_of_its_own(stages, heads):
    plan = planned(tuple((f"n{i}", devices, layers) for i, (devices, layers) in enumerate(stages)), heads=heads)
    (ranks,) = ranks_of(plan)
    assert [sum(host.layers) for host in ranks.hosts] == [layers for _, layers in stages]
    assert min(count for host in ranks.hosts for count in host.layers) >= 1
    assert heads % ranks.tensor_parallel == 0
    assert all(len(h.layers) * ranks.tensor_parallel <= h.node.num_devices for h in ranks.hosts)
    assert len(ranks.partition.split(",")) == ranks.pipeline_parallel
    started = [process for host in ranks.hosts for process in ranks.processes(host)]
    assert [rank for rank, _, _ in started] == list(range(len(started)))
    assert {count for _, count, _ in started} == {len(started)}
