"""What an API server was asked meanwhile, by its own metrics: calls, what was written, what watches were sent, and
what of a processor that took."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from strata.cluster.api.client import Api

_SUMS: Final = {
    "apiserver_request_total": "calls",
    "apiserver_request_body_size_bytes_sum": "written_bytes",
    "apiserver_watch_events_sizes_sum": "watched_bytes",
    "process_cpu_seconds_total": "cpu_s",
}
_LINE: Final = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")


def traffic(api: Api) -> Counter[str]:
    """Return sums since the API server began, of all who talk to it; a watch is no call. Raises ApiFailed."""
    sums: Counter[str] = Counter()
    for line in api.metrics().splitlines():
        match = _LINE.fullmatch(line)
        if match and (key := _SUMS.get(match["name"])) and 'verb="WATCH"' not in (match["labels"] or ""):
            sums[key] += float(match["value"])  # type: ignore[assignment]
    return sums


def per_pod(before: Counter[str], after: Counter[str], pods: int) -> dict[str, float]:
    """Return what was asked between, for each pod."""
    return {f"api_{key}_per_pod": (after[key] - before[key]) / pods for key in _SUMS.values()}
