"""`strata learn train --world astra`: training in ASTRA-sim's environment, and what it came to, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from strata.cli.output import emit, progress
from strata.tables import Shown, rows

UPDATES: Final = 20


def train_in_astra(
    backends: tuple[str, ...],
    *,
    fleet: str | None,
    model: str | None,
    seed: int | None,
    out: Path,
    minutes: float | None,
    updates: int | None,
    output: str,
) -> None:
    """Run the training; options that are not given take their defaults here."""
    from strata.errors import need

    for library in ("gymnasium", "onnx"):
        need(library, extra="train")
    from strata.fleet.schema import load_fleet
    from strata.learning import astra_training

    settings = astra_training.AstraSettings(
        tuple(dict.fromkeys(backends)) or ("unaware", "aware"), load_fleet(fleet or "seed"),
        model or "llama-3.1-70b", updates or UPDATES, seed or 0,
    )  # fmt: skip
    deadline = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    with progress("training in ASTRA-sim's environment", total=1) as advance:
        try:
            answer = astra_training.train_in_astra(settings, out, deadline=deadline, advance=advance)
        except KeyboardInterrupt:
            click.echo("interrupted: nothing was saved", err=True)
            raise click.exceptions.Exit(130) from None
    emit(answer, output, _show(answer))


def _show(answer: Mapping[str, Any]) -> Shown:
    yield (
        f"{answer['updates']} updates, {answer['steps']:,} steps in {answer['trained_in']}; {answer['model']} on "
        f"{answer['fleet']}, {answer['placements']} placements; kept: the {answer['kept']} policy"
    )
    evaluations = answer["evaluations"]
    body = [
        [rule, *(cell for each in evaluations for cell in _cells(each["rules"][rule]))]
        for rule in evaluations[0]["rules"]
    ]
    headers = [
        "rule",
        *(f"{each['backend']} {what}" for each in evaluations for what in ("reward", "step", "gain")),
    ]
    yield rows(headers, body, right=range(1, len(headers)))
    yield f"gain: in reward over the untrained policy on the same networks, 95 %; {evaluations[0]['steps']} steps"
    yield f"written: {', '.join([*answer['results'], answer['policy']])}"


def _cells(figures: Mapping[str, float]) -> tuple[str, str, str]:
    gain = f"{figures['gain_low']:+.4f}..{figures['gain_high']:+.4f}"
    return f"{figures['mean']:.4f}", f"{figures['step_time_s']:.1f}s", gain
