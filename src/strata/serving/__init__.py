"""Serving a model on unlike nodes: which layers go where, and which request takes which pipeline.

`planning` lays the layers onto nodes and answers with a plan (`strata plan serve`); `export` writes what launches
it on vLLM or SGLang. `live` is the scheduler that runs: events and the time in, instructions out, with `routing`
to choose the path of each request. Three drivers do what it says: `gateway` for real nodes (`worker`, or whole
engines), `replay` under virtual time, and `scheduler.Scheduler` in one process. What all of them share (nodes,
requests, layouts, the messages on the wire) are the modules beside these packages.
"""
