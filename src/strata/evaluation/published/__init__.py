"""Planning over measured layer profiles: case files, the neutral formulas, and the search."""
