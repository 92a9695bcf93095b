"""Records what the scheduler does: by perf, by the kernel's own tracing, or from snapshots of /proc alone."""
