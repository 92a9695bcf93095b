"""The scheduler that runs: one event and the time in, instructions out. No clock, no thread, no socket.

`core` takes the event and asks its parts: `members` (who is there, by heartbeats), `rollout` (which pipelines
serve, load or drain), `in_flight` (every request, its queue and its router), `arrangement` (what routers decide
on, made anew as nodes are measured). After every event it settles: what waits may load, what is due is planned,
requests with capacity are dispatched. A plan is too slow for that: the instruction `Replan` asks the driver to
call `replan.answer` elsewhere and to report `Planned`.
"""
