"""The event backend: plans run operation by operation on SimPy, with contention, jitter and failures."""
