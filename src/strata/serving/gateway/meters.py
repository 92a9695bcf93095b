"""What the gateway counts: one registry, the model as a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strata.net.metrics import SECONDS, Counter, Histogram, Registry, read_counter, read_gauge
from strata.serving.live.core import Core


class Meters:
    """Counters and histograms; the rest is read when it is shown.

    counts: each model's `Core.counts()`. cores: each model's scheduler, and the time by its clock.
    """

    def __init__(
        self,
        counts: Callable[[], Mapping[str, dict[str, int]]],
        cores: Callable[[], Mapping[str, tuple[Core, float]]],
    ) -> None:
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
        self.tpot = histogram("tpot", "Time of a token after the first: the mean of each request that ended well.")
        self.latency = histogram("request", "Time from arrival to the end.")
        gauge("ready", "Whether a pipeline is serving.", "ready")
        gauge("pipelines", "Pipelines, including those still loading.", "pipelines")
        gauge("nodes", "Nodes in the cluster.", "nodes")
        gauge("waiting_requests", "Requests waiting for a route.", "waiting")
        gauge("unfinished_requests", "Requests that have not finished.", "unfinished")
        read_gauge(
            new,
            "strata_oldest_wait_seconds",
            "How long the request waits that came first of those without a route.",
            ["model"],
            lambda: {(model,): core.oldest_wait_s(now_s) for model, (core, now_s) in cores().items()},
        )
        read_counter(
            new,
            "strata_requests_in_time_total",
            "Served requests that kept their goals; those without goals did.",
            ["model"],
            lambda: {(model,): core.metrics.num_in_time for model, (core, _) in cores().items()},
        )
        read_gauge(
            new,
            "strata_node_usage_ratio",
            "Shares in use: slots and KV memory, and what workers say of their machines.",
            ["model", "node", "resource"],
            lambda: {
                (model, node, resource): share
                for model, (core, _) in cores().items()
                for node, shares in core.metrics.usage.items()
                for resource, share in shares.items()
            },
        )
        for name, text, read in (
            (
                "tokens",
                "Tokens of served requests that went through a node.",
                lambda core: core.metrics.node_tokens,
            ),
            ("joins", "Times that a node has joined.", lambda core: core.metrics.joins),
        ):
            read_counter(new, f"strata_node_{name}_total", text, ["model", "node"], _by_node(cores, read))


def _by_node(
    cores: Callable[[], Mapping[str, tuple[Core, float]]], read: Callable[[Core], Mapping[str, float]]
) -> Callable[[], dict[tuple[str, ...], float]]:
    return lambda: {
        (model, node): value for model, (core, _) in cores().items() for node, value in read(core).items()
    }
