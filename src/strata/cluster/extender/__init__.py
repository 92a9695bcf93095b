"""Scheduler extenders: filter and prioritize for kube-scheduler and Volcano, answered by the router."""
