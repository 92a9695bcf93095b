"""Where the requests of a simulation come from: a trace, or arrivals and lengths that are drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from strata.cli.output import progress
from strata.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.workload.requests import Lengths, Request, SystemPrompts
    from strata.workload.serving_job import ServingJob

Source = tuple["Iterator[Request]", float, dict[str, Any]]
"""Requests, when they end [s], and what they are."""


def of_trace(path: str, *, speed: float, most_s: float) -> Source:
    """Return the requests of a file, as far as `most_s`. Raises BadFile and UsageError."""
    from strata.workload.request_trace import read_trace
    from strata.workload.requests import until

    if not 0 < speed < math.inf:
        raise UsageError(f"--speed {speed} is not above 0", hint="--speed 2")
    with progress("reading"):
        trace_file = read_trace(path)
    end_s = min(most_s, max(trace_file.seconds / speed, 1e-3))
    source = {
        "trace": path,
        "format": trace_file.format.name,
        "speed": speed,
        "failed_left_out": trace_file.num_failed,
    }
    stream = trace_file.requests(speed=speed)
    return (until(stream, end_s) if most_s <= trace_file.seconds / speed else stream), end_s, source


def drawn(
    job: ServingJob, *, rate: float | None, end_s: float, burst: float, swing: str, period: float, lengths: str,
    system_prompts: str | None, seed: int
) -> Source:  # fmt: skip
    """Return requests that are drawn. Raises UsageError for what has no meaning."""
    import numpy as np

    from strata.workload.requests import MOST_CV, arrivals, requests, until

    rate_per_s = rate or job.demand.rate_per_s
    if not rate_per_s:
        raise UsageError(f"{job.name} does not state a rate", hint="--rate 10")
    share = _share(swing)
    if not 0 <= burst <= MOST_CV:
        raise UsageError(f"--burst {burst} is not between 0 and {MOST_CV:g}", hint="--burst 3")
    rng = np.random.default_rng(seed)
    times = arrivals(rng, rate_per_s, cv=burst, swing=share, period_s=period)
    stream = requests(rng, times, _lengths(job, lengths), prompts=_prompts(system_prompts))
    source = {"rate_per_s": rate_per_s, "burst": burst, "swing": share, "lengths": lengths}
    return until(stream, end_s), end_s, source


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"--swing {text} is not a share below 100%", hint="--swing 60%")
    return value


def _lengths(job: ServingJob, name: str) -> Lengths:
    from strata.workload.requests import CONVERSATION, LENGTHS, Length, Lengths

    if name != "job":
        return LENGTHS[name]
    return Lengths(
        Length.around(job.demand.prompt_tokens, like=CONVERSATION.prompt),
        Length.around(job.demand.output_tokens, like=CONVERSATION.output),
    )


def _prompts(text: str | None) -> SystemPrompts | None:
    if text is None:
        return None
    from strata.serving.routing.prefix import BLOCK_TOKENS
    from strata.workload.requests import SystemPrompts

    count, _, tokens = text.partition("x")
    if not (count.isdigit() and tokens.isdigit() and int(count) and int(tokens)):
        raise UsageError(f"--system-prompts {text} should be NxTOKENS", hint="--system-prompts 8x1024")
    return SystemPrompts(int(count), int(tokens), BLOCK_TOKENS)
