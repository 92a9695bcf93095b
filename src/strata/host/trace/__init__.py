"""Scheduler traces as columns: what an event is, and how text of perf and tracefs becomes one."""
