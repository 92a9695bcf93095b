"""Which pipeline, or which path through the layers, a request takes."""
