"""`strata calibrate`: what kernels reach on the user's machines, from the logs of runs that they made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from strata.cli.completing import FLEET, JOB
from strata.cli.output import emit, output_option
from strata.errors import UsageError
from strata.tables import Shown, rows

_NOT_WHAT_RAN: Final = ("devices-short", "batch-differs")


@click.command()
@click.argument("fleet", type=FLEET)
@click.argument("job", type=JOB)
@click.option(
    "--run", "pairs", multiple=True, required=True, metavar="PLAN:LOG",
    help="A plan file or layout, and the log of its run; several may be given.",
)  # fmt: skip
@output_option
def calibrate(fleet: str, job: str, pairs: tuple[str, ...], output: str) -> None:
    """Fit how fast kernels are to step times of a training JOB on a FLEET.

    Reads logs of Megatron-LM, nanotron, torchtitan, the Hugging Face Trainer (its progress bar) and of the program
    that `strata export` writes, what a program reports in STRATA_PROGRESS, or a CSV of `step,seconds`. The median
    of the steps after the warm-up counts. One number is fitted for each accelerator, the rates of its kernels over
    those of published runs; a job reads it as `calibration:`. Two or three layouts show how well it predicts
    another.

    \b
    strata calibrate fleet.yaml job.yaml --run a.yaml:a.log --run b.yaml:b.log
    """
    from strata.files import read_text
    from strata.fleet.schema import load_fleet
    from strata.simulate.analytic import StepModel
    from strata.training.calibrate import TimedRun
    from strata.training.calibrate import calibrate as fit
    from strata.training.plan.given import read_given
    from strata.training.plan.legality import misfits, shortfalls
    from strata.training.step_log import steady_steps
    from strata.workload.schema import load_job

    loaded_fleet, loaded_job = load_fleet(fleet), load_job(job)
    runs, logs = [], []
    for pair in pairs:
        plan_file, _, log_file = pair.rpartition(":")
        if not plan_file or not log_file:
            raise UsageError(f"--run {pair}: no plan and log", hint="--run layout.yaml:train.log")
        plan = read_given(Path(plan_file), loaded_fleet, loaded_job)
        model = StepModel(loaded_fleet, loaded_job)
        faults = misfits(model, plan) or [r for r in shortfalls(model, plan) if r.token in _NOT_WHAT_RAN]
        if faults:
            wrong = "; ".join(map(str, faults))
            raise UsageError(f"{plan_file}: {wrong}", hint="the fleet and the job of that run")
        tokens = loaded_job.global_batch * loaded_job.sequence_length / plan.num_devices
        log = steady_steps(log_file, read_text(log_file), tokens_per_device=tokens)
        runs.append(TimedRun(plan, log.step_s))
        logs.append((plan_file, log_file, log))
    fitted = fit(loaded_fleet, loaded_job, runs)
    data: dict[str, Any] = {
        "job": loaded_job.name,
        "calibration": dict(fitted.ratios),
        "trust": "calibrated",
        "runs": [
            {
                "plan": plan_file, "log": log_file, "warm_up_steps": log.warm_up, "steady_steps": log.steady,
                "measured_s": log.step_s,
                **{f"{key}_s": seconds for key, seconds in predicted.items()},
                **{f"{key}_error": None if seconds is None else seconds / log.step_s - 1
                   for key, seconds in predicted.items()},
            }
            for (plan_file, log_file, log), run in zip(logs, fitted.runs, strict=True)
            for predicted in [{"before": run.before_s, "after": run.after_s, "left_out": run.left_out_s}]
        ],
    }  # fmt: skip
    emit(data, output, _show(data))


def _show(data: dict[str, Any]) -> Shown:
    from strata.units import show_time

    def error(value: float | None) -> str:
        return "-" if value is None else f"{value:+.1%}"

    yield f"{data['job']}: predicted step times against the medians of steady steps"
    body = [
        [run["log"], f"{run['steady_steps']}", show_time(run["measured_s"]),
         *(error(run[f"{key}_error"]) for key in ("before", "after", "left_out"))]
        for run in data["runs"]
    ]  # fmt: skip
    yield rows(["log", "steps", "measured", "before", "after", "left out"], body, right=range(1, 6))
    yield "left out: by a fit to the other runs alone"
    ratios = ", ".join(f"{name}: {ratio:.4g}" for name, ratio in data["calibration"].items())
    yield f"in the job (calibrated): `calibration: {{{ratios}}}`"
