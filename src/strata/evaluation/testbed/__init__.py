"""A real training step over shaped links between network namespaces, and what the cost model says of it."""
