"""Jobs across data centres: plan space, exact planner, baselines, launch files."""
