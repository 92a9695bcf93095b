"""The groups of commands below `strata`: tables, whose commands are each imported only when they run."""

from __future__ import annotations

import click

from strata.cli.lazy import LazyGroup, Table


def _group(name: str, text: str, table: Table) -> click.Group:
    modules = {command: (f"strata.cli.{place}", says) for command, (place, says) in table.items()}
    return LazyGroup(name, table=modules, help=text)


plan = _group(
    "plan",
    "Plan a job on a fleet: ranked, with the reasons.",
    {
        "train": ("plan_train:train", "Plan a training job: stages onto domains."),
        "serve": ("plan_serve:serve", "Plan the serving of a model: layers onto nodes."),
    },
)
serve = _group(
    "serve",
    "Serve requests on pipelines of nodes, or simulate it.",
    {
        "gateway": ("serve_gateway:gateway", "Route OpenAI-compatible requests onto the nodes that join."),
        "worker": ("serve_worker:worker", "Host a range of a real small transformer's layers."),
        "calibrate": (
            "serve_calibrate:calibrate",
            "Fit what a pipeline takes to a log of its requests, or to its answers.",
        ),
        "simulate": ("serve_simulate:simulate", "Play arrivals and failures on a fleet; no GPU."),
    },
)
kube = _group(
    "kube",
    "Place accelerator jobs on a Kubernetes cluster, whatever its vendors.",
    {
        "acu": ("kube_acu:acu", "What the cluster has, in use and free, of all vendors together."),
        "agent": ("kube_agent:agent", "Find this node's accelerators, and publish how well they are."),
        "controller": ("kube_controller:controller", "Route suspended jobs, and take broken nodes out."),
        "crds": ("kube_manifests:crds", "Print the custom resource definitions, for kubectl apply."),
        "device-claim": (
            "kube_device_claim:device_claim",
            "Print a job with its devices as Kubernetes' own device requests (DRA).",
        ),
        "dispatch": ("kube_dispatch:dispatch", "Nominate worker clusters for the workloads of MultiKueue."),
        "extender": ("kube_extender:extender", "Answer schedulers that ask which nodes a pod may go to."),
        "flavors": ("kube_manifests:flavors", "Print what Kueue counts quota by, for kubectl apply."),
        "library": ("kube_manifests:library", "Put the quota library into a folder of this node."),
        "webhook": ("kube_webhook:webhook", "Inject runtimes into pods, and hold jobs back until routed."),
        "why": ("kube_why:why", "Where a job or a pod goes, or why it waits: every node's reason."),
    },
)
fleet = _group(
    "fleet",
    "Find what there is, and measure the links between it.",
    {
        "show": ("fleet_show:show_fleet", "Domains, links and ACU of a fleet file."),
        "discover": ("fleet:discover", "Print a fleet file of this machine, Slurm, Kubernetes."),
        "probe": ("fleet:probe", "Measure the links of a fleet file, and write them into it."),
    },
)
host = _group(
    "host",
    "Explain why training loses CPU time on this machine, and give critical threads CPUs.",
    {
        "agent": ("host_agent:agent", "Watch what threads wait for, by job, always on, as metrics."),
        "apply": ("host_apply:apply", "Apply the steps of a plain policy; each can be undone."),
        "enforce": ("host_enforce:enforce", "Keep a job's layers in force while they help."),
        "layers": ("host_layers:layers", "Generate a policy for the threads running here, any kernel."),
        "lint": ("host_lint:lint", "Find what scx_layered silently accepts in a policy."),
        "ranks": ("host_ranks:ranks", "Which rank, on which host, makes its whole job wait."),
        "record": ("host_record:record", "Record the scheduler's events and a snapshot of the machine."),
        "report": ("host_report:report", "Why threads waited for a CPU, who held it, and what to do."),
        "rollout": ("host_rollout:rollout", "Try a policy on attempts of jobs: A/A first, then A/B."),
        "run-layered": ("host_run_layered:run_layered", "Run and supervise scx_layered, with metrics."),
        "threads": ("host_threads:threads", "Classify live threads into pools and layers, with evidence."),
        "undo": ("host_apply:undo", "Restore the state before apply, also after a crash."),
    },
)
bench = _group(
    "bench",
    "Measure strata against published figures and named peers.",
    {
        "training": ("bench_plans:training", "Plan the points of a case file; score them neutrally."),
        "serving": ("bench_serving:serving", "Lay out the pools of a case file; score them neutrally."),
        "gateway": ("bench_serving:gateway", "What a gateway adds to an engine's answers."),
        "pipelines": ("bench_serving:pipelines", "What several workers in a row cost beside one."),
        "routing": ("bench_serving:routing", "Decisions a second of the routers, and a pool at its limit."),
        "cluster": ("bench_machines:cluster", "How fast pods and gangs are placed, and how well."),
        "slicing": ("bench_machines:slicing", "What the quota library adds to a driver's calls."),
        "host": ("bench_machines:host", "How fast traces of the scheduler are read and explained."),
        "accuracy": ("bench_plans:accuracy", "Predicted against measured step times of real runs."),
        "published": ("bench_plans:published", "Predicted against published step times, by source."),
        "planning": ("bench_plans:planning", "How long exact planning takes, by number of domains."),
        "simulate": ("bench_plans:simulate", "How many plans a second the cost model answers."),
        "replan": ("bench_learning:replan", "Keep or switch under changing links: the ladder of rules."),
        "control": ("bench_plans:control", "Decisions a second of the loop, and a week of jobs."),
        "learn": ("bench_learning:learn", "PPO steps a second, beside Stable-Baselines3."),
        "heads": ("bench_learning:heads", "Allocation ratios against candidate plans, as agents' actions."),
        "world": ("bench_learning:world", "Steps a second of the simulated world of re-planning."),
        "astra": ("bench_plans:astra", "Our ASTRA-compatible mode against runs of ASTRA-sim."),
    },
)
