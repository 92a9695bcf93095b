"""How long, how busy, how dear: one cost model for every planner."""
