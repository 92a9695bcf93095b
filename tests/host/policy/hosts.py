"""A training host as layers see it: two nodes, a kernel that offers everything, and its threads."""

from __future__ import annotations

from hypothesis import strategies as st

from strata.host.machine.kernel import Kernel
from strata.host.threads.classify import classify
from tests.host.builders import training_host
from tests.host.machine.cpus import simple
from tests.support.laws import examples

FULL = Kernel(
    cgroup_root="/sys/fs/cgroup",
    controllers=frozenset({"cpu", "cpuset", "memory"}),
    has_cpu_idle=True,
    memory_nodes=(0, 1),
    resctrl_domains=(0, 1),
    has_bandwidth_monitor=True,
    irqs={24: tuple(range(16)), 25: (0,), 26: (2, 3)},
)
HOST = training_host()
THREADS = classify(HOST)
BIG = simple(16, nodes=2)
MACHINES = st.builds(simple, st.integers(1, 64), nodes=st.integers(1, 4), smt=st.booleans())
FEW = examples(60)
