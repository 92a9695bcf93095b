"""Launch scripts for SGLang: one a node, with the plan's layers, context and sequences in flight.

SGLang numbers pipeline ranks by node rank (`launch_server`: `pp_size // nnodes` ranks a node), so the scripts
alone say which node has which layers.
"""

from __future__ import annotations

from strata.serving.export import launch
from strata.serving.planning.planfile import ServingPlan

PORT = 30000
DIST_PORT = 20000


def render(plan: ServingPlan) -> launch.EngineFiles:
    """Return the scripts of all nodes, and the gateway's. Raises as `ranks_of` does."""
    return launch.rendered(plan, _script, engine="SGLang", port=PORT)


def _script(plan: ServingPlan, ranks: launch.Ranks, host: launch.EngineHost) -> str:
    many, job = len(ranks.hosts) > 1, plan.job
    port, dist_port = PORT + host.part, ranks.port(DIST_PORT)
    variables = [f"  PORT         where it answers; stage 1 takes the requests (default {port})"]
    if many:
        variables.append(f"  DIST_PORT    a free port of stage 1, the same everywhere (default {dist_port})")
    head = launch.script_head(
        plan, ranks, host, engine="SGLang", variables=[*variables, "Arguments go to sglang.launch_server."]
    )
    head += f'PORT="${{PORT:-{port}}}"\n'
    if many:
        head += f'DIST_PORT="${{DIST_PORT:-{dist_port}}}"\n'
    if ranks.pipeline_parallel > 1:
        head += f"export SGLANG_PP_LAYER_PARTITION={ranks.partition}\n"
    commands = []
    for index, (node_rank, num_nodes, device) in enumerate(ranks.processes(host)):
        command = 'python3 -m sglang.launch_server --model-path "$MODEL"' + launch.arguments(
            ("--served-model-name", job.model),
            ("--host", "0.0.0.0"),
            ("--port", launch.Shell(f"$((PORT + {index}))" if index else "$PORT")),
            ("--tp-size", ranks.tensor_parallel),
            ("--pp-size", ranks.pipeline_parallel if ranks.pipeline_parallel > 1 else None),
            ("--nnodes", num_nodes if many else None),
            ("--node-rank", node_rank if many else None),
            ("--dist-init-addr", launch.Shell("$HEAD_ADDR:$DIST_PORT") if many else None),
            ("--base-gpu-id", device if device > 0 else None),
            ("--context-length", launch.Shell(f"${{CONTEXT:-{ranks.context(job)[0]}}}")),
            ("--max-running-requests", max(1, ranks.pipeline.slots)),
            ("--mem-fraction-static", f"{1 - job.memory_headroom:.3g}"),
            ("--dtype", ranks.dtype),
            ("--quantization", "fp8" if job.weights == "fp8" else None),
            ("--kv-cache-dtype", "fp8_e4m3" if job.kv == "fp8" else None),
        )
        commands.append(("", f'{command} "$@"'))
    return head + launch.run_all(commands)
