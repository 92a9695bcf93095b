"""The extender behind a real socket on loopback, asked as a scheduler asks it: what HTTP adds.

It runs in a thread of this process; the client waits in the kernel meanwhile, so the two share a core but no time.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from strata.cluster.extender.handlers import Handlers
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.evaluation.placement.rate import pod_of, question
from strata.evaluation.placement.synthetic import synthetic_node_object

FULL_REPEATS: Final = 3


class RoundTrips(NamedTuple):
    """Wall seconds of each filter with its prioritize, and of each filter alone that was sent whole nodes.

    full_bytes: of such a question. full_decide_s: of the same without HTTP.
    """

    names_s: tuple[float, ...]
    full_s: tuple[float, ...]
    full_decide_s: tuple[float, ...]
    full_bytes: int


def round_trips(
    index: Index, claims: Sequence[Claim], profiles: Sequence[RuntimeProfile], *, clock: Callable[[], float]
) -> RoundTrips:
    """Ask for a pod of every claim, on one connection that is kept; the cluster does not change meanwhile."""
    names = [node.name for node in index.nodes]
    names_s: list[float] = []
    full: list[float] = []
    decided: list[float] = []
    with _served(index, profiles) as port:
        client = http.client.HTTPConnection("127.0.0.1", port)
        for claim in claims:
            pod = pod_of(claim)
            body = question(pod, names)
            started = clock()
            answer = _post(client, "/v1/filter", body)
            filter_s = clock() - started
            body = question(pod, json.loads(answer)["NodeNames"])
            started = clock()
            _post(client, "/v1/prioritize", body)
            names_s.append(filter_s + clock() - started)
        whole = _whole(pod_of(claims[0]), names)
        handlers = Handlers(lambda: index, lambda: profiles)
        for _ in range(FULL_REPEATS):
            started = clock()
            _post(client, "/v1/filter", whole)
            full.append(clock() - started)
            started = clock()
            handlers.filter(whole)
            decided.append(clock() - started)
        client.close()
    return RoundTrips(tuple(names_s), tuple(full), tuple(decided), len(whole))


def _whole(pod: Any, names: Sequence[str]) -> bytes:
    nodes = {"metadata": {}, "items": [synthetic_node_object(name) for name in names]}
    return json.dumps({"Pod": pod, "Nodes": nodes, "NodeNames": None}, separators=(",", ":")).encode()


def _post(client: http.client.HTTPConnection, path: str, body: bytes) -> bytes:
    client.request("POST", path, body, {"content-type": "application/json"})
    answer = client.getresponse()
    payload = answer.read()
    assert answer.status == 200, f"{path} answered {answer.status}"
    return payload


@contextmanager
def _served(index: Index, profiles: Sequence[RuntimeProfile]) -> Iterator[int]:
    """Yield the port of an extender in a thread."""
    from strata.cluster.extender.app import make_frame
    from strata.net.server import listen, serving

    with listen("127.0.0.1", 0) as listener, serving(make_frame(lambda: index, lambda: profiles), listener):
        yield listener.getsockname()[1]
