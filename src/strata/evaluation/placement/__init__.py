"""How well and how fast jobs are placed on a cluster, beside other rules."""
