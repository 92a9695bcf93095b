"""Serving: layers onto nodes, requests onto pipelines."""
