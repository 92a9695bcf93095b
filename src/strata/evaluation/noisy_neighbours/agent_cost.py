"""What the host agent costs: looks at a process of 200 threads beside all that runs here, in CPU time."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from strata.host.agent.agent import SLOW_LOOKS, HostAgent
from strata.host.agent.metrics import HostAgentMetrics
from strata.host.agent.pmu import CacheMisses
from strata.host.agent.watch import ThreadWatch
from strata.net.metrics import render

THREADS: Final = 200
INTERVAL_S: Final = 2.0
"""Between two looks, as the agent has it unless told otherwise."""
_SLEEPERS: Final = f"""
import sys, threading
for _ in range({THREADS} - 1):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class AgentCost:
    """share: of one CPU, at a look every INTERVAL_S and a scrape every 15 s. threads: how many it watched."""

    share: float
    threads: int

    def to_dict(self) -> dict[str, float | int]:
        """Return the stable JSON form."""
        return {"cpu_share": self.share, "threads": self.threads, "interval_s": INTERVAL_S}


def measure(*, rounds: int = 2) -> AgentCost:
    """Take as many looks as the agent takes in half a minute, `rounds` times after a first that does not count."""
    process = subprocess.Popen([sys.executable, "-c", _SLEEPERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        watch = ThreadWatch()
        metrics = HostAgentMetrics(watch)
        agent = HostAgent(watch, metrics, CacheMisses([]))
        used_s = []
        for _ in range(rounds + 1):
            began_s = time.process_time()
            for look in range(SLOW_LOOKS):
                agent.tick(now_s=INTERVAL_S * look)
            render(metrics.registry)
            render(metrics.registry)
            used_s.append(time.process_time() - began_s)
        return AgentCost(sum(used_s[1:]) / (rounds * SLOW_LOOKS * INTERVAL_S), watch.num_threads)
    finally:
        process.kill()
        process.communicate()
