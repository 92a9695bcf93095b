"""Injected faults with a known culprit, on this kernel or on a simulated one, and how often a report names it."""
