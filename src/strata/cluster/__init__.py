"""Jobs onto clusters: one vendor-neutral request, the right accelerator and runtime, on Kubernetes.

A pod or job of ours comes in through `admission`, which suspends jobs, places single pods from memory, and injects
the runtime into pods whose place is known. `cache` follows the API server through informers. `scheduling` decides
on a snapshot of it, and knows nothing of Kubernetes. `controller` runs the cycle: snapshot, queue, decide, assume,
apply, explain; it heals nodes and moves gangs as well. `kueue` and `extender` ask the same router for Kueue's
admission checks and for other schedulers. `agent` runs on each node and publishes what accelerators it has.
Everything talks to the API server through `api`.
"""
