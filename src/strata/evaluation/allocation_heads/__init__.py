"""The seeds' literal allocation ratios as an agent's action (Dirichlet, layered), beside candidate plans."""
