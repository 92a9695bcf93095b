"""The machine itself: its CPUs, what its kernel offers, and the time that a hypervisor took from it.

Read from sysfs and procfs, below a root that tests can replace; frozen data from then on. `policy`, `apply` and
`record` decide by it, `analysis` only where a snapshot of it lies beside the trace.
"""
