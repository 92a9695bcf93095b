"""A stand-in for an ASTRA-sim binary, fake because no real one can be here: strata never builds or ships one.

It reads the files strata wrote with strata's own decoder and prints the lines of a real binary
(facts: ASTRA-sim's output format), with times by simple rules: a message takes latency + size / bandwidth of the
first dimension its ends differ in and holds its sender's one slot until delivery; a ring collective starts when
its last member does and takes its closed form. As ns-3 it adds the delays of a path, there and back, to size / its
slowest link. What it cannot show is whether a real binary agrees.
"""

from __future__ import annotations

import heapq
import json
import stat
import sys
import time
from collections import defaultdict
from pathlib import Path

from tests import ROOT

NAMES = {"unaware": "AstraSim_Analytical_Congestion_Unaware", "aware": "AstraSim_Analytical_Congestion_Aware"}
NS3_NAME = "ns3.42-AstraSimNetwork-default"

_SCRIPT = """#!{python}
import sys

sys.path.insert(0, {root!r})
from tests.simulate.astra.fake_astra import main
sys.exit(main(sys.argv[1:], {mode!r}))
"""


def fake(folder: Path, backend: str = "unaware", mode: str = "right") -> Path:
    """Write an executable. mode: right, old (format 2.0), missing (a rank), wrong (a number), fpe (exit 136).

    hangs, silent: passes the self-check, and on all else never ends or prints nothing.
    """
    text = _SCRIPT.format(python=sys.executable, root=str(ROOT), mode=mode)
    return script(folder / {**NAMES, "ns3": NS3_NAME}.get(backend, backend), text)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def main(arguments: list[str], mode: str) -> int:
    import yaml

    option = dict(item.removeprefix("--").split("=", 1) for item in arguments)
    is_ns3 = "logical-topology-configuration" in option
    topology = Path("topology.txt").read_text() if is_ns3 else ""
    network = {} if is_ns3 else yaml.safe_load(Path(option["network-configuration"]).read_text())
    system = json.loads(Path(option["system-configuration"]).read_text())
    named = option["comm-group-configuration"]
    groups = {} if "empty" in named else json.loads(Path(named).read_text())
    if mode == "fpe" or "preferred-dataset-splits" not in system:
        sys.stdout.write("terminate called\n")
        return 136
    prefix = option["workload-configuration"]
    simulator = Ns3(topology, system, groups, prefix) if is_ns3 else Simulator(network, system, groups, prefix)
    if mode in ("hangs", "silent") and simulator.num_ranks != (2 if is_ns3 else 8):
        time.sleep(600 if mode == "hangs" else 0)
        return 0
    finish, bare = simulator.run()
    for rank, end in finish.items():
        if mode == "missing" and rank == 1:
            continue
        cycles = end + (mode == "wrong")
        exposed = "" if mode == "old" else f", exposed communication {cycles - bare[rank]} cycles"
        prefix = "" if mode == "old" else "[2026-11-20 19:58:46.441] [workload] [info] "
        sys.stdout.write(f"{prefix}sys[{rank}] finished, {cycles} cycles{exposed}.\n")
    return 0


class Simulator:
    def __init__(self, network, system, groups, prefix):
        from tests.simulate.astra.chakra_decoder import decode

        self.sizes, self.system, self.groups = network["npus_count"], system, groups
        each = zip(network["latency"], network["bandwidth"], strict=True)
        self.wires = [(latency, bandwidth * 2**30 / 1e9) for latency, bandwidth in each]
        self.num_ranks = 1
        for size in self.sizes:
            self.num_ranks *= size
        self.todo, self.waits, self.followers = {}, {}, {}
        for rank in range(self.num_ranks):
            nodes = decode(Path(f"{prefix}.{rank}.et").read_bytes())
            self.todo[rank] = {node.id: node for node in nodes}
            self.waits[rank] = {node.id: set(node.data_deps + node.ctrl_deps) for node in nodes}
        self.slot = {(rank, kind): False for rank in self.todo for kind in ("comp", "comm")}
        self.arrived, self.posted = defaultdict(list), defaultdict(list)
        self.joined = defaultdict(list)
        self.events, self.order = [], 0

    def run(self):
        self.finish = dict.fromkeys(self.todo, 0)
        self.busy = dict.fromkeys(self.todo, 0)
        for rank in self.todo:
            self.issue(0, rank)
        while self.events:
            now, _, rank, action = heapq.heappop(self.events)
            action(now)
            self.issue(now, rank)
        return {rank: end for rank, end in self.finish.items() if not self.todo[rank]}, self.busy

    def at(self, when, rank, action):
        self.order += 1
        heapq.heappush(self.events, (when, self.order, rank, action))

    def issue(self, now, rank):
        for node_id in sorted(i for i, deps in self.waits[rank].items() if not deps):
            node = self.todo[rank][node_id]
            kind = {"COMP": "comp", "COMM_SEND": "comm", "COMM_COLL": "comm"}.get(node.type.name)
            if kind and self.slot[rank, kind]:
                continue
            del self.waits[rank][node_id]
            if kind:
                self.slot[rank, kind] = True
            getattr(self, node.type.name.lower())(now, rank, node)

    def done(self, now, rank, node, kind=None):
        if kind:
            self.slot[rank, kind] = False
        del self.todo[rank][node.id]
        for deps in self.waits[rank].values():
            deps.discard(node.id)
        self.finish[rank] = max(self.finish[rank], now)

    def comp(self, now, rank, node):
        span = node.duration_us * 1000 or 1
        self.busy[rank] += span
        self.at(now + span, rank, lambda when: self.done(when, rank, node, "comp"))

    def hop(self, size, ends):
        step = 1
        for (latency, bandwidth), count in zip(self.wires, self.sizes, strict=True):
            if len({end // step % count for end in ends}) > 1:
                return int(latency + size / bandwidth)
            step *= count
        raise AssertionError(f"{ends} are one rank")

    def comm_send(self, now, rank, node):
        a = node.attrs
        key = (rank, a["comm_dst"], a["comm_tag"], a["comm_size"])
        end = now + self.hop(a["comm_size"], (rank, a["comm_dst"]))
        self.at(end, rank, lambda when: self.done(when, rank, node, "comm"))

        def deliver(when):
            if self.posted[key]:
                self.done(when, a["comm_dst"], self.posted[key].pop(0))
            else:
                self.arrived[key].append(when)

        self.at(end, a["comm_dst"], deliver)

    def comm_recv(self, now, rank, node):
        a = node.attrs
        key = (a["comm_src"], rank, a["comm_tag"], a["comm_size"])
        if self.arrived[key]:
            self.arrived[key].pop(0)
            self.at(now, rank, lambda when: self.done(when, rank, node))
        else:
            self.posted[key].append(node)

    def comm_coll(self, now, rank, node):
        a = node.attrs
        name = a.get("pg_name", "0")
        members = self.groups.get(name) or list(range(self.num_ranks))
        count = sum(1 for r, n in self.joined[name] if r == rank)
        self.joined[name].append((rank, node))
        turn = [(r, n) for r in members for n in [n for q, n in self.joined[name] if q == r][count : count + 1]]
        if len(turn) == len(members):
            end = now + self.collective(a["comm_type"], a["comm_size"], members)
            for r, n in turn:
                self.at(end, r, lambda when, r=r, n=n: self.done(when, r, n, "comm"))

    def collective(self, kind, size, members):
        if len(members) == self.num_ranks and len(self.sizes) > 1:
            assert kind == 0, "the fake knows all-reduce over the whole grid only"
            first = list(range(self.sizes[0]))
            across = [i * self.sizes[0] for i in range(self.sizes[1])]
            part = size // len(first)
            return self.one(7, size, first, 0) + self.one(0, part, across, 1) + self.one(2, part, first, 0)
        return self.one(kind, size, members, 0)

    def one(self, kind, size, members, dim):
        n, delay = len(members), 10
        part = size if kind == 2 else size // n
        reduction = 3 * int(part / self.system["local-mem-bw"])
        hop = self.hop(part, members[:2])
        if "irect" in self.system["all-reduce-implementation"][dim]:
            return {0: 2 * hop + reduction + 3 * delay, 7: hop + reduction + 2 * delay, 2: hop + 2 * delay}[kind]
        rounds = (n - 1) * (2 if kind == 0 else 1) * (hop + delay)
        return rounds + delay + (0 if kind == 2 else (n - 1) * reduction)


class Ns3(Simulator):
    def __init__(self, topology, system, groups, prefix):
        counts, _switches, *lines = topology.splitlines()
        num_nodes, num_switches, _ = map(int, counts.split())
        ranks = num_nodes - num_switches
        super().__init__({"npus_count": [ranks], "latency": [0.0], "bandwidth": [1.0]}, system, groups, prefix)
        self.links = defaultdict(dict)
        for line in lines:
            a, b, rate, delay, _ = line.split()
            wire = (float(rate.removesuffix("bps")) / 8e9, float(delay.removesuffix("ns")))
            self.links[int(a)][int(b)] = self.links[int(b)][int(a)] = wire

    def hop(self, size, ends):
        source, dest = ends
        paths = [(0.0, source, float("inf"), (source,))]
        while paths:
            delay, node, rate, seen = heapq.heappop(paths)
            if node == dest:
                return int(2 * delay + size / rate)
            for after, (speed, latency) in self.links[node].items():
                if after not in seen:
                    heapq.heappush(paths, (delay + latency, after, min(rate, speed), (*seen, after)))
        raise AssertionError(f"{ends} are not connected")
