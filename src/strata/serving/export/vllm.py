"""Launch scripts for vLLM: one a node, with the plan's layers, context and sequences in flight.

Nodes are joined by vLLM's own processes (`--nnodes`, its PR 23691), which number the stages as the scripts say.
Ray works too, but puts the nodes after the head in an order of its own (vLLM's `ray_executor.py` sorts by address,
`ray_executor_v2.py` by Ray's node id), so it is refused where that would give a node the layers of another.
"""

from __future__ import annotations

from strata.serving.export import launch
from strata.serving.planning.planfile import PlannedService, ServingPlan

PORT = 8000
MASTER_PORT = 29501


def render(plan: ServingPlan) -> launch.EngineFiles:
    """Return the scripts of all nodes, and the gateway's. Raises as `ranks_of` does."""
    return launch.rendered(plan, _script, engine="vLLM", port=PORT)


def _script(plan: ServingPlan, ranks: launch.Ranks, host: launch.EngineHost) -> str:
    many, port, master_port = len(ranks.hosts) > 1, ranks.port(PORT), ranks.port(MASTER_PORT)
    variables = [f"  PORT         where it answers, on stage 1 (default {port})"] if host.first_rank == 0 else []
    if many:
        variables += [
            f"  MASTER_PORT  a free port of stage 1, the same everywhere (default {master_port})",
            "  VLLM_HOST_IP this node's address, where it has several",
        ]
    if ranks.has_ray:
        variables += [
            "  EXECUTOR     mp (default): vLLM's own processes; ray: a Ray cluster, started here,",
            "               which orders the stages after the first itself",
            "  RAY_PORT     with ray: a free port of stage 1 (default 6379)",
        ]
    head = launch.script_head(
        plan, ranks, host, engine="vLLM", variables=[*variables, "Arguments go to vllm serve."]
    )
    if host.first_rank == 0:
        head += f'PORT="${{PORT:-{port}}}"\n'
    if many:
        head += f'MASTER_PORT="${{MASTER_PORT:-{master_port}}}"\n'
    if ranks.pipeline_parallel > 1:
        head += f"export VLLM_PP_LAYER_PARTITION={ranks.partition}\n"
    if ranks.has_ray:
        head += _ray(plan.job, ranks, host)
    commands = []
    for node_rank, num_nodes, device in ranks.processes(host):
        count = ranks.tensor_parallel * (len(host.layers) if ranks.is_even else 1)
        environment = launch.visible_devices(host, device, count) if device >= 0 else ""
        joined = launch.arguments(
            ("--distributed-executor-backend", "mp" if ranks.pipeline_parallel > 1 else None),
            ("--nnodes", num_nodes if many else None),
            ("--node-rank", node_rank if many else None),
            ("--master-addr", launch.Shell("$HEAD_ADDR") if many else None),
            ("--master-port", launch.Shell("$MASTER_PORT") if many else None),
            ("--headless", "" if node_rank else None),
        )
        commands.append((environment, _serve(plan.job, ranks, answers=node_rank == 0) + joined + ' "$@"'))
    return head + launch.run_all(commands)


def _serve(job: PlannedService, ranks: launch.Ranks, *, answers: bool) -> str:
    return 'vllm serve "$MODEL"' + launch.arguments(
        ("--served-model-name", job.model),
        ("--host", "0.0.0.0" if answers else None),
        ("--port", launch.Shell("$PORT") if answers else None),
        ("--tensor-parallel-size", ranks.tensor_parallel),
        ("--pipeline-parallel-size", ranks.pipeline_parallel if ranks.pipeline_parallel > 1 else None),
        ("--max-model-len", launch.Shell(f"${{CONTEXT:-{ranks.context(job)[0]}}}")),
        ("--max-num-seqs", max(1, ranks.pipeline.slots)),
        ("--gpu-memory-utilization", f"{1 - job.memory_headroom:.3g}"),
        ("--dtype", ranks.dtype),
        ("--quantization", "fp8" if job.weights == "fp8" else None),
        ("--kv-cache-dtype", "fp8" if job.kv == "fp8" else None),
    )


def _ray(job: PlannedService, ranks: launch.Ranks, host: launch.EngineHost) -> str:
    """Return the branch of a script that uses a Ray cluster, or refuses to."""
    layers = [other.layers for other in ranks.hosts[1:]]
    devices = len(host.layers) * ranks.tensor_parallel
    if len(set(layers)) > 1:
        lines = [
            f'echo "EXECUTOR=ray: Ray orders stages 2 to {len(ranks.hosts)} itself, and their layers differ" >&2',
            "exit 2",
        ]
    elif host.first_rank:
        lines = [f'exec ray start --address="$HEAD_ADDR:${{RAY_PORT:-6379}}" --num-gpus={devices} --block']
    else:
        start = (
            f'ray start --head --node-ip-address="$HEAD_ADDR" --port="${{RAY_PORT:-6379}}" --num-gpus={devices}'
        )
        serve = _serve(job, ranks, answers=True) + launch.arguments(("--distributed-executor-backend", "ray"))
        lines = [start, f'exec {serve} "$@"']
    return "".join(["if [[ ${EXECUTOR:-mp} == ray ]]; then\n", *(f"  {line}\n" for line in lines), "fi\n"])
