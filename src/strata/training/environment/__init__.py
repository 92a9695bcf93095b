"""A Gymnasium environment: seed 001's scheduling problem, as an agent sees it."""

from __future__ import annotations

from typing import Final

from strata.errors import need

ASTRA_SIM: Final = "strata/AstraSim-v0"


def register() -> None:
    """Make `gymnasium.make("strata/AstraSim-v0")` work; twice does no harm.

    Raises MissingPart where gymnasium is not installed.
    """
    gymnasium = need("gymnasium", extra="train")
    if ASTRA_SIM not in gymnasium.registry:
        gymnasium.register(ASTRA_SIM, entry_point="strata.training.environment.astra_sim:AstraSimEnv")
