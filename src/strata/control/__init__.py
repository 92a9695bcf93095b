"""The scheduler that runs: one pure core that daemon, replay in virtual time and tests drive alike.

`state` is what is known, `driver` what a domain must be able to do. Side effects are the drivers' alone.
"""
