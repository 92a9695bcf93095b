"""Bandwidth and latency as processes in time: factors over the base values, moved by steps.

`noise.Uniform` is the seed's noise, `OrnsteinUhlenbeck` and `Diurnal` vary more slowly; `regimes` has links that
are good, degraded or bad for a while, what policies are trained and judged on; `replay.Replay` plays back a
measured file; `Product` takes several at once. `strata simulate --vary` names them as `parse` reads them. All are
pure: the state goes in and comes out, chance comes from a generator, and one call moves the links of any number of
environments.
"""
