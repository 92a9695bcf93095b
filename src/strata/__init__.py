"""strata: one scheduler for AI compute, from data centres to CPU cores."""

__version__ = "0.1.0"
