"""Host: the CPU cores of one machine: who waits for them, which threads matter, and how to give them room.

`record` writes a trace of the scheduler and a snapshot of the `machine` beside it; `trace` reads that (or a trace
made elsewhere) into columns; `analysis` says who waited, for whom, and what to do about it. `threads` classifies
what runs now; `policy` turns its answer into a policy, for scx_layered or as plain steps, and lints it; `apply`
takes those steps and undoes them; `manager` keeps scx_layered under watch; `rollout` tries a policy on some
attempts of jobs before all jobs get it.
"""

from strata.host.threads.label import Labelled, label

__all__ = ["Labelled", "label"]
