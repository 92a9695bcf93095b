"""`strata export`: write the files that launch a plan, or that simulate it elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from strata.api.loaded import read_plan_of
from strata.cli.output import emit, output_option
from strata.cli.parameters import PATH, choice
from strata.errors import UsageError
from strata.files import write_bytes
from strata.sentences import filled
from strata.tables import Shown, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from strata.serving.planning.planfile import ServingPlan
    from strata.training.plan.planfile import SavedPlan


@dataclass(frozen=True)
class _Exported:
    """Files by name. counts: by their key in the answer. stale: pattern of files that a launch would mix up."""

    files: Mapping[str, bytes]
    counts: Mapping[str, int]
    notes: tuple[str, ...]
    last: str
    stale: str


_RANKS: Final = "{num_ranks} ranks on {num_nodes} nodes"


@click.command()
@click.argument("plan", type=PATH)
@click.option(
    "--to",
    "target",
    type=choice("torchrun", "megatron", "kubernetes", "kueue", "chakra", "vllm", "sglang"),
    required=True,
    help="What will launch it; torchrun: with a small stand-in model to train; kubernetes: objects "
    "whose nodes and devices strata's controller chooses, of serving plans, too; chakra: traces for ASTRA-sim; "
    "vllm and sglang: serving plans.",
)
@click.option("--out", type=PATH, default=Path("out/export"), help="Folder to fill.")
@click.option(
    "--aggregate",
    type=choice("min", "mean", "max"),
    help="chakra: what stands for unlike links (min: the least favourable).",
)
@output_option
def export(plan: Path, target: str, out: Path, aggregate: str | None, output: str) -> None:
    """Write launch files whose ranks run exactly what PLAN says; PLAN is what `strata plan` saved.

    \b
    strata export plan.json --to torchrun
    strata export plan.json --to kubernetes
    strata export plan.json --to kueue --out launch/
    strata export plan.json --to chakra --aggregate min
    strata export serving-plan.json --to vllm
    strata export serving-plan.json --to kubernetes
    """
    if aggregate and target != "chakra":
        raise UsageError("--aggregate is for --to chakra", hint="leave it out: a launch has every link")
    kinds, render = _TARGETS[target]
    saved = read_plan_of(kinds, plan, purpose=f"--to {target} launches", hint=_OTHER_TARGET[kinds[0]])
    exported = render(saved, target, out, aggregate)
    for name, content in exported.files.items():
        write_bytes(out / name, content)
    if others := sorted(path.name for path in out.glob(exported.stale) if path.name not in exported.files):
        click.echo(f"note: {out} also has files of another export: {', '.join(others)}", err=True)
    for note in exported.notes:
        click.echo(f"note: {note}", err=True)
    data = {
        "plan": saved.name,
        "target": target,
        "folder": str(out),
        **exported.counts,
        "files": list(exported.files),
        "notes": list(exported.notes),
    }
    emit(data, output, _show(exported, out))


def _launch(saved: SavedPlan, target: str, _out: Path, _aggregate: str | None) -> _Exported:
    from strata.training.export import kueue, megatron, torchrun
    from strata.training.export.ranks import RankLayout

    layout = RankLayout.of(saved)
    if target == "megatron":
        launch = megatron.render(layout, saved.job)
    else:
        to_kueue = target == "kueue"
        launch = (
            kueue.render(layout, saved.job.name)
            if to_kueue
            else torchrun.render(layout, software=saved.job.software)
        )
    counts = {"num_ranks": len(launch.ranks.ranks), "num_nodes": len(launch.ranks.nodes())}
    last = filled(_RANKS, counts)
    if target == "torchrun":
        last += "\ntrain.py trains a small stand-in model (tiny.py): put yours in once ranks and links work"
    return _Exported(_encoded(launch.files), counts, launch.notes, last, stale="launch-*.sh")


def _kubernetes(saved: SavedPlan | ServingPlan, _target: str, out: Path, _aggregate: str | None) -> _Exported:
    from strata.serving.planning.planfile import ServingPlan

    if isinstance(saved, ServingPlan):
        return _serve_kubernetes(saved, out)
    from strata.control.manifests import manifests
    from strata.fleet.schema import load_drivers
    from strata.training.plan.planfile import reload_inputs
    from strata.workload.schema import load_run

    inputs = reload_inputs(saved.file)  # the fleet file has the drivers, the job file what to run
    drivers, run = load_drivers(saved.inputs["fleet"]), load_run(saved.inputs["job"])
    launch = manifests(saved, inputs.fleet, inputs.job, drivers=drivers, run=run)
    counts = {"num_ranks": len(launch.ranks.ranks), "num_nodes": len(launch.ranks.nodes())}
    last = filled(_RANKS, counts)
    last += f"\nnext: kubectl apply --server-side -f {out}, each file in the cluster of its domain"
    return _Exported(_encoded(launch.files), counts, (*inputs.changes, *launch.notes), last, stale="*.yaml")


def _serve(saved: ServingPlan, target: str, out: Path, _aggregate: str | None) -> _Exported:
    from strata.serving.export import sglang, vllm

    engine = (vllm if target == "vllm" else sglang).render(saved)
    counts = _pipelines(saved)
    last = (
        "{num_pipelines} pipelines on {num_nodes} nodes\n".format(**counts)
        + f"next: run each script on its node, then {out / 'gateway.sh'}, which puts\n"
        "      strata serve gateway --backend URL ... before all pipelines"
    )
    return _Exported(_encoded(engine.files), counts, engine.notes, last, stale="pipeline-*.sh")


def _serve_kubernetes(saved: ServingPlan, out: Path) -> _Exported:
    from strata.control.serving_manifests import serving_manifests
    from strata.fleet.schema import load_drivers

    made = serving_manifests(saved, drivers=load_drivers(saved.inputs["fleet"]))
    counts = _pipelines(saved)
    last = (
        "{num_pipelines} pipelines on {num_nodes} nodes\n".format(**counts)
        + f"next: kubectl apply --server-side -f {out}; requests go to the Service of the gateway"
    )
    return _Exported(_encoded(made.files), counts, made.notes, last, stale="*.yaml")


def _pipelines(saved: ServingPlan) -> dict[str, int]:
    num_nodes = sum(len(pipeline.stages) for pipeline in saved.pipelines)
    return {"num_pipelines": len(saved.pipelines), "num_nodes": num_nodes}


def _chakra(saved: SavedPlan, _target: str, _out: Path, aggregate: str | None) -> _Exported:
    from strata.simulate.astra.lower import Aggregation
    from strata.training.export import chakra

    rendered = chakra.render(saved, aggregation=Aggregation(aggregate) if aggregate else None)
    files = {**_encoded(rendered.files), **rendered.traces}
    last = f"{len(rendered.traces)} ranks, {sum(map(bool, rendered.labels))} of them at work"
    return _Exported(files, {"num_ranks": len(rendered.traces)}, rendered.notes, last, stale="trace.*.et")


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in files.items()}


_TARGETS: Final[Mapping[str, tuple[tuple[str, ...], Callable[..., _Exported]]]] = {
    "torchrun": (("TrainingPlan",), _launch),
    "megatron": (("TrainingPlan",), _launch),
    "kubernetes": (("TrainingPlan", "ServingPlan"), _kubernetes),
    "kueue": (("TrainingPlan",), _launch),
    "chakra": (("TrainingPlan",), _chakra),
    "vllm": (("ServingPlan",), _serve),
    "sglang": (("ServingPlan",), _serve),
}
"""What each target launches, and what renders its files."""
_OTHER_TARGET: Final = {"TrainingPlan": "--to vllm", "ServingPlan": "--to torchrun"}
"""Where a plan is of the other kind than the target launches."""


def _show(exported: _Exported, out: Path) -> Shown:
    body = [(str(out / name), str(len(content))) for name, content in exported.files.items()]
    yield rows(["file", "bytes"], body, right=[1])
    yield exported.last
