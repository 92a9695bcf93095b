"""Bandwidth and latency as processes in time: factors over the base values, moved by steps.

`Uniform` is the seed's noise; `Regimes` and `precursor` are what policies are trained and judged on; `Replay`
plays back a measured file (`replay_file.read_replay`). All are pure: the state goes in and comes out,
chance comes from a generator, and one call moves the links of any number of environments.
"""

from strata.fleet.dynamics.noise import Uniform
from strata.fleet.dynamics.process import Process
from strata.fleet.dynamics.regimes import Regimes, precursor
from strata.fleet.dynamics.replay import Replay

__all__ = ["Process", "Regimes", "Replay", "Uniform", "precursor"]
