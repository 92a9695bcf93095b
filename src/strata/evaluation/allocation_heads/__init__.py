"""The reference design's allocation ratios as an agent's action (Dirichlet, layered), beside candidate plans."""
