"""Plans of one training job on one fleet: what comes in, what goes out, who calls whom.

A `Fleet` and a `TrainingJob` become a `Problem` (`exact/problem.py`): the domains that may take part, and the
parallel configurations worth trying inside them. `planner.py` searches it: `exact/search.py` up to ten domains,
`exact/wide.py` above; both take branches by their bound, build plans, and have `simulate` time them. The result
goes to `report.py`, which sets it beside `baselines/` and writes the one form that `planfile.py` reads back for
`export/`. `relax.py` says what would help where nothing fits, `whatif.py` and `comparison.py` set two results side
by side. `shortlist/` picks the candidates that the learned policy and the KPI studies choose from.
"""
