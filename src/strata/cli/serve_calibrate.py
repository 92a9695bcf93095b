"""`strata serve calibrate`: what a pipeline takes, from a log of its requests or from asking it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from strata.cli.completing import FLEET, SERVING_JOB
from strata.cli.output import emit, output_option, progress
from strata.cli.parameters import NATURAL, SECONDS, Finite, OutputFile, typed
from strata.errors import UsageError, need
from strata.tables import Shown, rows


@click.command()
@click.argument("fleet", type=FLEET)
@click.argument("job", type=SERVING_JOB)
@click.option("--log", "log_file", type=click.Path(), help="Requests and what they took: a CSV, or vLLM's JSON.")
@click.option("--url", metavar="URL", help="A gateway or an engine to ask instead, with STRATA_TOKEN.")
@click.option("--rate", type=Finite(min=0, min_open=True), help="With --url: requests per second; else the job's.")
@click.option("--seconds", type=SECONDS, default="60s", help="With --url: how long requests keep arriving.")
@click.option("--seed", default=0, type=NATURAL, help="With --url: random seed of arrivals and lengths.")
@click.option("--save", type=OutputFile(), help="With --url: write the log.")
@click.pass_context
@output_option
def calibrate(
    context: click.Context, fleet: str, job: str, log_file: str | None, url: str | None, rate: float | None,
    seconds: float, seed: int, save: Path | None, output: str,
) -> None:  # fmt: skip
    """Fit what JOB takes on the one pipeline of FLEET to measured requests.

    Four ratios of the accelerator, measured over expected, and the time that every request takes besides, from the
    first half of the requests; how well they foretell the second half is printed. A job reads them as
    `calibration:`. Its `engine:` has to say how many sequences the engine decodes together and how many tokens of
    prompts it reads in a step, and its `memory_headroom` leave as much KV memory.

    The CSV has the columns at_s, prompt_tokens, output_tokens, ttft_s, latency_s; vLLM's JSON is that of
    `vllm bench serve --save-result --save-detailed`. Twenty requests or more are needed.

    \b
    strata serve calibrate fleet.yaml job.yaml --log requests.csv
    strata serve calibrate fleet.yaml job.yaml --url http://127.0.0.1:8000 --rate 2 --save requests.csv
    """

    from strata.fleet.schema import load_fleet
    from strata.serving.measured.fit import fit
    from strata.serving.measured.log import read_log
    from strata.serving.measured.pipeline import MeasuredPipeline
    from strata.workload.serving_schema import load_serving_job

    if log_file is None and url is None:
        raise UsageError("either a log or an address is needed", hint="--log requests.csv")
    if log_file is not None and url is not None:
        raise UsageError("--log and --url are given: it is one or the other", hint="leave --url out")
    given = typed(context, "rate", "seconds", "seed", "save")
    if log_file is not None and given:
        raise UsageError(f"--{given[0]} has no effect with --log", hint="--url http://127.0.0.1:8000")
    serving_job = load_serving_job(job)
    pipeline = MeasuredPipeline(load_fleet(fleet), serving_job, source=fleet)
    errors = list[str]()
    if log_file is not None:
        log = read_log(log_file)
    else:
        need("httpx", extra="serve")
        import asyncio

        from strata.cli.serve_arrivals import drawn
        from strata.cli.tokens import token_of
        from strata.serving.measured.ask import ask
        from strata.serving.measured.log import check, write_log

        requests, _, _ = drawn(
            serving_job, rate=rate, end_s=seconds, burst=1.0, swing="0%", period=86_400.0,
            lengths="job", system_prompts=None, seed=seed,
        )  # fmt: skip
        token = token_of(None)
        with progress("asking"):
            log, errors = asyncio.run(ask(str(url), list(requests), token=token, seed=seed))
        if save is not None:
            write_log(save, log)
        check(str(url), log)
    with progress("fitting"):
        fitted = fit(serving_job, log, pipeline.accelerator, pipeline.layout)
    half = len(log.requests) // 2
    data: dict[str, Any] = {
        "job": serving_job.name,
        "log": log_file or url,
        "requests": {"fitted": half, "judged": len(log.requests) - half, "failed": len(errors)},
        "calibration": {pipeline.accelerator: fitted.ratios._asdict()},
        "engine": {"sequences": serving_job.sequences, "step_tokens": serving_job.step_tokens},
        "trust": "calibrated",
        "half_not_used": {
            name: {
                "measured": _named(after.measured),
                "predicted": _named(after.predicted),
                "error": _named(after.errors),
                "error_before": _named(fitted.before[name].errors),
            }
            for name, after in fitted.after.items()
        },
    }
    for error in errors[:3]:
        click.echo(f"note: a request failed: {error}", err=True)
    emit(data, output, _show(data))


def _named(figures: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("mean", "p50", "p95"), figures, strict=True))


def _show(data: dict[str, Any]) -> Shown:
    from strata.units import show_time

    counts = data["requests"]
    yield (
        f"{data['job']}: fitted to {counts['fitted']} requests, judged by the {counts['judged']} after them"
        + (f"; {counts['failed']} failed" if counts["failed"] else "")
    )
    names = {"ttft_s": "first token", "tpot_s": "token after it", "latency_s": "end to end"}
    body = [
        [names[key], show_time(of["measured"]["mean"]), show_time(of["predicted"]["mean"]),
         *(f"{of['error'][figure]:+.1%}" for figure in ("mean", "p50", "p95")),
         f"{of['error_before']['mean']:+.1%}"]
        for key, of in data["half_not_used"].items()
    ]  # fmt: skip
    headers = ("time", "measured", "predicted", "error", "of p50", "of p95", "uncalibrated")
    yield rows(headers, body, right=range(1, len(headers)))
    ((name, ratios),) = data["calibration"].items()
    shown = ", ".join(f"{key}: {value:.4g}" for key, value in ratios.items())
    yield f"in the job (calibrated): `calibration: {{{name}: {{{shown}}}}}`"
