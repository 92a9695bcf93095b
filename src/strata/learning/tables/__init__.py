"""Re-planning small enough to be solved: one job, a table of rewards, links that are Markov chains.

`table` with its `chain` is the problem, `random_tables` draws some, `value_iteration` solves one exactly,
`environment` plays many at once, and `ladder` puts rules and a policy between random and clairvoyant.
"""
