"""Which pipeline, or which path through the layers, a request takes.

A router is arranged for a `Layout`; `route` reserves slots and KV tokens (`reservations`) on each node of the path
it chooses, `release` gives them back. `pipelines` (round robin) and `least_work` choose among whole pipelines,
`layered` joins any servers whose layers meet (`graph`). `queue` is where requests wait for capacity.
"""
