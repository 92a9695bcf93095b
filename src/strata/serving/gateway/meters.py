"""What the gateway counts: one registry, the model as a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strata.net.metrics import SECONDS, Counter, Histogram, Registry, read_gauge


class Meters:
    """Counters and histograms; gauges read `counts` (each model's `Core.counts()`) when they are shown."""

    def __init__(self, counts: Callable[[], Mapping[str, dict[str, int]]]) -> None:
        self.registry = new = Registry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"strata_{name}_total", text, labels, registry=new)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"strata_{name}_seconds", text, ["model"], buckets=SECONDS, registry=new)

        def gauge(name: str, text: str, key: str) -> None:
            def read() -> dict[tuple[str, ...], float]:
                return {(model,): values[key] for model, values in counts().items()}

            read_gauge(new, f"strata_{name}", text, ["model"], read)

        self.http = counter("http_requests", "HTTP requests by status.", "code")
        self.requests = counter("requests", "Finished requests, by outcome.", "model", "outcome")
        self.tokens = counter("tokens", "Prompt tokens and generated tokens.", "model", "kind")
        self.attempts = counter("attempts", "Attempts at requests, by outcome.", "model", "outcome")
        self.instructions = counter("instructions", "Instructions that the scheduler gave.", "model", "kind")
        self.faults = counter("faults", "Internal errors, each of them logged.", "model", "at")
        self.ttft = histogram("ttft", "Time from arrival to the first token.")
        self.latency = histogram("request", "Time from arrival to the end.")
        gauge("ready", "Whether a pipeline is serving.", "ready")
        gauge("pipelines", "Pipelines, including those still loading.", "pipelines")
        gauge("nodes", "Nodes in the cluster.", "nodes")
        gauge("waiting_requests", "Requests waiting for a route.", "waiting")
        gauge("unfinished_requests", "Requests that have not finished.", "unfinished")
