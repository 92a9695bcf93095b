"""The exact planner: plan space, bounds with proofs, branch and bound, the Pareto front."""
