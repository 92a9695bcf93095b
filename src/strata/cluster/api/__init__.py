"""The API server: kinds of objects, our custom resources and annotations, and a client with watches and leases.

What comes in is JSON as the API server sends it; what goes out are `actions`, as data; `applier` does them.
`client` is the only module that opens connections; `watch` and `lease` survive it.
"""
