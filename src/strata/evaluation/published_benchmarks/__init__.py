"""Published benchmarks of other planners: their case files, their formulas, and how ours compare under them.

`case_file` reads points over measured layer profiles and `formulas` scores a plan for one exactly as the authors'
simulator does; `search` looks for the best plan of a point under these formulas (docs/decisions/0012 says why it
is not the planner's). `accuracy` predicts the measured runs of the same file with constants that `calibrate` fits.
`replan_scenario` and `serving_cases` read the case files of re-planning and of serving, which the product's own
rules and planner answer.
"""
