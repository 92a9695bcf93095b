"""Re-planning small enough to be solved: one job, a table of rewards, links that are Markov chains.

`table` is the problem, `random_tables` draws some, `value_iteration` solves one exactly, and `environment` plays
many at once. `evaluation/replan_ladder.py` puts rules and a policy between random and clairvoyant.
"""
