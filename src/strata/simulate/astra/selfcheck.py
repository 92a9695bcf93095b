"""Asking a binary one case whose answer is known, before any other of its answers counts.

Builds differ, and a wrong one answers as readily as a right one. What passed is remembered until the file changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from strata.errors import MissingPart, StrataError, UsageError
from strata.files import write_json
from strata.simulate.astra import ns3
from strata.simulate.astra.chakra import ChakraCollective, Node, NodeType
from strata.simulate.astra.discover import AstraBackend, cache_file, is_checked, remembered, stamp
from strata.simulate.astra.files import AstraDimension, Scenario, options, scenario_files
from strata.simulate.astra.run import Run, run

CHECK_TIME_LIMIT_S: Final = 20.0
CHECK_NS: Final = 9_197_541
"""Ring all-reduce of 256 MiB between 8 ranks on a Ring of 50 "GB/s" and 500 ns: both analytical backends."""
NS3_CHECK_NS: Final = 61_740_000
"""1 MiB between two ranks over a switch, both links 5 Gbps and 15 ms, with the acknowledgement's way back."""
NS3_TOLERANCE: Final = 0.02  # headers and congestion control differ between builds


def self_check(binary: Path, backend: AstraBackend, environment: Mapping[str, str]) -> None:
    """Run the known case once a binary; what passed is remembered under XDG_CACHE_HOME.

    Raises StrataError where the binary hangs, fails or answers wrong: then none of its answers would count;
    MissingPart where it does not start.
    """
    if is_checked(binary, environment):
        return
    try:
        answer, expected, tolerance = _known_case(binary, backend)
    except (MissingPart, UsageError):
        raise  # it does not start, or there is nowhere to run it
    except StrataError as error:
        raise StrataError(f"{binary} does not pass the self-check: {error}", hint=_REBUILD) from None
    answer_ns = max(answer.finish_ns)
    if abs(answer_ns - expected) > tolerance * expected:
        raise StrataError(
            f"{binary} does not pass the self-check: a known case takes {expected} ns, and it says {answer_ns} ns",
            hint=_REBUILD,
        )
    cache = cache_file(environment)
    with suppress(UsageError):  # a home that cannot be written only costs the next check
        write_json(cache, {**remembered(cache), str(binary): stamp(binary)})


_REBUILD: Final = "an unmodified build of ASTRA-sim 2.x"


def _known_case(binary: Path, backend: AstraBackend) -> tuple[Run, int, float]:
    if backend is AstraBackend.NS3:
        scenario, expected, tolerance = ns3.known_case(), NS3_CHECK_NS, NS3_TOLERANCE
        return ns3.run_network(binary, scenario, time_limit_s=CHECK_TIME_LIMIT_S), expected, tolerance
    node = Node(
        0, NodeType.COMM_COLL, "all-reduce",
        attrs={"comm_type": int(ChakraCollective.ALL_REDUCE), "comm_size": 2**28, "involved_dim": (True,)},
    )  # fmt: skip
    ring = Scenario((AstraDimension(8, 50 * 2.0**30, 500e-9, "Ring"),), ((node,),) * 8)
    answer = run(
        binary, arguments=options(has_groups=False), files=scenario_files(ring), traces=ring.traces,
        time_limit_s=CHECK_TIME_LIMIT_S,
    )  # fmt: skip
    return answer, CHECK_NS, 0.0
