"""Layers of a model onto nodes: a fleet and a serving job in, a plan with its reasons out.

`planner.plan_serving` observes (`observe.py`: nodes, pool), has every strategy `allocate` pipelines on the pool,
estimates what each would serve and says why the others were not taken. A strategy proposes groups of nodes:
`order` makes a ring of each, `split` cuts the layers over it, `evaluation` says what that serves. While requests
run, `live/replan.py` calls the same `allocate`.
"""
