"""Logs of requests to a pipeline, and the cost model fitted to them (`strata serve calibrate`)."""
