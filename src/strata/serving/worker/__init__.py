"""A node that hosts layers of a small real transformer, and passes activations on.

`agent` joins the gateway and sends heartbeats; `app` takes its orders and the other workers' steps over HTTP.
`holder` keeps layers and the KV memory of sequences, `stage` runs steps on them in one thread (`turns`). `drive`
is what the first worker of a route does: it starts each step and waits for the token to come around. `run` starts
all of it.
"""
