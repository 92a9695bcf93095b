"""The five KPIs of seed 003, counted as requests and tokens go by."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from strata.decision import Trust

KEPT: Final = 10_000
"""Latencies that percentiles are taken over: the latest."""
NAMES: Final = 1000
"""Nodes whose joins are counted: the latest."""
GONE_S: Final = 3600.0
"""How long a node that has gone is still named in reports (assumed); in the totals it stays."""


class MetricsCollector:
    """Collects what was measured; `generate_report` says it in one dictionary with stable keys.

    Times are the caller's clock. Every figure is measured; what was not measured is None, never zero. What is kept
    is bounded: nodes that have gone are forgotten by name after GONE_S.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self._since_s = self._now_s = now_s
        self._latency_s: deque[float] = deque(maxlen=KEPT)
        self._ttft_s: deque[float] = deque(maxlen=KEPT)
        self._tpot_s: deque[float] = deque(maxlen=KEPT)
        self._counts = dict.fromkeys(("served", "in_time", "rejected", "cancelled", "interrupted"), 0)
        self._joins: dict[str, int] = {}
        self._tokens = 0
        self._tokens_sent_bytes = self._lost_bytes = 0.0
        self._node_tokens: dict[str, float] = {}
        self._busy_s: dict[str, dict[str, float]] = {}
        self._usage: dict[str, dict[str, float]] = {}
        self._usage_since_s: dict[str, float] = {}
        self._present_s: dict[str, float] = {}
        self._gone_s: dict[str, float] = {}
        self._forgotten = np.zeros(3)  # how many nodes, the sum of their mean loads, and that of the squares

    def at(self, now_s: float) -> None:
        """Move the time on."""
        self._now_s = max(self._now_s, now_s)
        while self._gone_s and self._now_s - self._gone_s[name := next(iter(self._gone_s))] > GONE_S:
            if shares := self._shares(name):
                load = _load(shares)
                self._forgotten += (1.0, load, load**2)
            del self._gone_s[name], self._busy_s[name], self._present_s[name]

    def count(self, what: str) -> None:
        """Count a request that was served, in time, rejected, cancelled or interrupted."""
        self._counts[what] += 1

    def count_join(self, node_id: str) -> None:
        """Count a node that joined; those that joined first are forgotten where there are many names."""
        self._joins[node_id] = self._joins.pop(node_id, 0) + 1
        if len(self._joins) > NAMES:
            del self._joins[next(iter(self._joins))]

    @property
    def num_in_time(self) -> int:
        """Served requests that kept their goals; those without goals did."""
        return self._counts["in_time"]

    @property
    def joins(self) -> Mapping[str, int]:
        """How often nodes joined, also such that have gone."""
        return self._joins

    @property
    def usage(self) -> Mapping[str, Mapping[str, float]]:
        """Shares in use of the nodes that are there, as of now."""
        return self._usage

    @property
    def node_tokens(self) -> Mapping[str, float]:
        """Tokens of served requests that went through the nodes that are there."""
        return self._node_tokens

    def collect_request_latency(self, request_id: str, latency: float) -> None:
        """Note a served request's time from arrival to its last token [s]."""
        self._latency_s.append(latency)

    def collect_tokens(self, ttft_s: float | None, tpot_s: float | None, tokens: int) -> None:
        """Note a served request's tokens, its time to the first and its mean time of the others [s]."""
        self._tokens += tokens
        if ttft_s is not None:
            self._ttft_s.append(ttft_s)
        if tpot_s is not None:
            self._tpot_s.append(tpot_s)

    def collect_throughput(self, node_id: str, tokens: float) -> None:
        """Note tokens of a served request that went through a node; the report says how many a second."""
        self._node_tokens[node_id] = self._node_tokens.get(node_id, 0.0) + tokens

    def collect_resource_usage(self, node_id: str, usage: Mapping[str, float]) -> None:
        """Note a node's shares in use from now on (0 to 1: slots, kv, cpu, memory, gpu, gpu_memory)."""
        self._gone_s.pop(node_id, None)
        if node_id in self._usage:
            lasted_s = self._now_s - self._usage_since_s[node_id]
            busy = self._busy_s.setdefault(node_id, {})
            for name, share in self._usage[node_id].items():
                busy[name] = busy.get(name, 0.0) + share * lasted_s
            self._present_s[node_id] = self._present_s.get(node_id, 0.0) + lasted_s
        self._usage[node_id] = dict(usage)
        self._usage_since_s[node_id] = self._now_s

    def collect_network(self, useful_bytes: float, lost_bytes: float = 0.0) -> None:
        """Note activations passed on for tokens that were delivered, and for work that had to be done again."""
        self._tokens_sent_bytes += useful_bytes
        self._lost_bytes += lost_bytes

    def forget(self, node_id: str) -> None:
        """Stop counting a node that has gone; what it did stays in the means."""
        if node_id in self._usage:
            self.collect_resource_usage(node_id, {})
            del self._usage[node_id], self._usage_since_s[node_id]
            self._gone_s[node_id] = self._now_s
        self._node_tokens.pop(node_id, None)

    def generate_report(self) -> dict[str, Any]:
        """Return the five KPIs; shares are 0 to 1, balance is Jain's index of the nodes' mean load (1: equal)."""
        for node_id, usage in list(self._usage.items()):
            self.collect_resource_usage(node_id, usage)
        elapsed_s = self._now_s - self._since_s
        shares = {node_id: of_node for node_id in sorted(self._busy_s) if (of_node := self._shares(node_id))}
        loads = np.array([_load(of_node) for of_node in shares.values()])
        count, total, squares = self._forgotten + np.array((len(loads), loads.sum(), (loads**2).sum()))
        spread = max(count * squares - total**2, 0.0) ** 0.5  # rounding must not make it imaginary
        sent = self._tokens_sent_bytes + self._lost_bytes
        return {
            "request_latency": {
                "end_to_end_s": _percentiles(self._latency_s),
                "ttft_s": _percentiles(self._ttft_s),
                "tpot_s": _percentiles(self._tpot_s),
            },
            "throughput": {
                "requests_per_s": self._counts["served"] / elapsed_s if elapsed_s > 0 else None,
                "tokens_per_s": self._tokens / elapsed_s if elapsed_s > 0 else None,
                "by_node_tokens_per_s": {
                    node_id: tokens / elapsed_s if elapsed_s > 0 else None
                    for node_id, tokens in sorted(self._node_tokens.items())
                },
                **self._counts,
            },
            "resource_utilization": {
                "mean": float(total / count) if count else None,
                "by_node": shares,
            },
            "load_balance": {
                "jain": float(total**2 / (count * squares)) if squares else None,
                "coefficient_of_variation": float(spread / total) if total else None,
            },
            "network_efficiency": {
                "useful_share": self._tokens_sent_bytes / sent if sent else None,
                "bytes_per_s": sent / elapsed_s if elapsed_s > 0 else None,
            },
            "elapsed_s": elapsed_s,
            "trust": Trust.MEASURED.value,
        }

    def _shares(self, node_id: str) -> dict[str, float]:
        """Return a node's mean shares in use while it was there; nothing where that was no time at all."""
        present_s = self._present_s.get(node_id, 0.0)
        if present_s <= 0:
            return {}
        return {name: value / present_s for name, value in sorted(self._busy_s[node_id].items())}


def _load(shares: Mapping[str, float]) -> float:
    """Return what of a node is given away, slots or KV memory; what its machine has in use is not ours alone."""
    return max(shares.get(name, 0.0) for name in ("slots", "kv"))


def _percentiles(values: deque[float]) -> dict[str, float] | None:
    if not values:
        return None
    array = np.array(values)
    return {"mean": float(array.mean())} | {f"p{p}": float(np.percentile(array, p)) for p in (50, 95, 99)}
