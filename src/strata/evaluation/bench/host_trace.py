"""Made-up traces of any length, as `perf script` prints them: trainers, loaders and hogs share some CPUs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

CHUNK: Final = 20_000
_SWITCH: Final = (
    "%16s %5d/%-5d [%03d] %5d.%09d:             sched:sched_switch: prev_comm=%s prev_pid=%d prev_prio=120 "
    "prev_state=%s ==> next_comm=%s next_pid=%d next_prio=120\n"
)
_WAKE: Final = "%16s %5d/%-5d [%03d] %5d.%09d:             sched:%s: comm=%s pid=%d prio=120 target_cpu=%03d\n"
_SOFTIRQ: Final = "%16s %5d/%-5d [%03d] %5d.%09d:              irq:softirq_%s: vec=9 [action=RCU]\n"
Thread = tuple[str, int]


def perf_text(num_events: int, *, seed: int, num_cpus: int = 8, num_threads: int = 64) -> Iterator[bytes]:
    """Yield the text of a trace of at least that many events, in portions; the same seed gives the same text.

    The mix is that of a real training host under noise: a third switches, a third wakeups, the rest interrupts.
    """
    rng = random.Random(seed)
    names = ("trainer_main", "pt_data_worker", "hog", "python3", "kworker/u8:6-ev")
    threads: list[Thread] = [(names[i % len(names)][:15], 1000 + i) for i in range(num_threads)]
    running: list[Thread] = [(f"swapper/{cpu}", 0) for cpu in range(num_cpus)]
    ready, asleep = threads[: num_threads // 2], threads[num_threads // 2 :]
    lines: list[str] = []
    now, written = 10**12, 0
    while written < num_events:
        cpu = rng.randrange(num_cpus)
        now += rng.randrange(1_000, 20_000)
        seconds, ns = divmod(now, 10**9)
        comm, tid = running[cpu]
        where = (comm, tid, tid, cpu, seconds, ns)
        if asleep and rng.random() < 0.5:
            woken = asleep.pop(rng.randrange(len(asleep)))
            ready.append(woken)
            lines.append(_WAKE % (*where, "sched_waking", *woken, cpu))
            lines.append(_WAKE % (*where, "sched_wakeup", *woken, cpu))
        if ready:
            to = ready.pop(rng.randrange(len(ready)))
            state = "R" if rng.random() < 0.4 else "S"
            if tid:
                (ready if state == "R" else asleep).append(running[cpu])
            lines.append(_SWITCH % (*where, comm, tid, state if tid else "R", *to))
            running[cpu] = to
        lines += (_SOFTIRQ % (*where, "entry"), _SOFTIRQ % (*where, "exit"))
        if len(lines) >= CHUNK:
            written += len(lines)
            yield "".join(lines).encode()
            lines = []
