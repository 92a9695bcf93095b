"""Many training jobs on several domains: queues, placements, and how much useful work they give."""
