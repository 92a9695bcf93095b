"""Jobs onto clusters: one vendor-neutral request, the right accelerator and runtime, on Kubernetes."""
