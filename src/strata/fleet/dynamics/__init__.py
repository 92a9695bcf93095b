"""Bandwidth and latency as processes: factors over the base values, moved by steps of time."""

from strata.fleet.dynamics.diurnal import Diurnal
from strata.fleet.dynamics.noise import OrnsteinUhlenbeck, Uniform
from strata.fleet.dynamics.process import Process, Product, path
from strata.fleet.dynamics.regimes import Regimes, outage, precursor
from strata.fleet.dynamics.replay import Replay

__all__ = [
    "Diurnal",
    "OrnsteinUhlenbeck",
    "Process",
    "Product",
    "Regimes",
    "Replay",
    "Uniform",
    "outage",
    "path",
    "precursor",
]
