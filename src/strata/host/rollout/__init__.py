"""Trying a policy on a fleet: attempts of jobs, A/A before A/B, a test that may be looked at any time."""
