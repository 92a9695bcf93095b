"""Host: the CPU cores of one machine: who waits for them, which threads matter, and how to give them room."""

from strata.host.threads.label import Labelled, label

__all__ = ["Labelled", "label"]
