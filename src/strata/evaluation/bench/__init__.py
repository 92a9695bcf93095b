"""Bodies of `strata bench` that have no room of their own."""
