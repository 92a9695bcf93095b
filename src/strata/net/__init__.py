"""What every HTTP server of ours stands on: `server` runs uvicorn, `http` is the frame around an application
(token, limits, honest errors, a drain that loses nothing), `metrics` is its /metrics page.

A gateway, worker, webhook, extender or agent writes a Starlette application of routes and nothing else. It is put
in an `http.Frame` and handed to `server.serve`, which returns once SIGTERM has come and the last answer is out.
"""
