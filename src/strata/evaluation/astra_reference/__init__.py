"""Runs of the real ASTRA-sim, row by row, beside what our compatible mode says of them."""
