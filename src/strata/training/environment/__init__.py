"""Gymnasium environments: seed 001's scheduling problem and the re-planning world, as an agent sees them."""

from __future__ import annotations

from typing import Final

from strata.errors import need

ASTRA_SIM: Final = "strata/AstraSim-v0"
WAN_REPLAN: Final = "strata/WanReplan-v0"


def register() -> None:
    """Make `gymnasium.make("strata/AstraSim-v0")` and `make_vec("strata/WanReplan-v0")` work; twice does no harm.

    Raises MissingPart where gymnasium is not installed.
    """
    gymnasium = need("gymnasium", extra="train")
    if ASTRA_SIM not in gymnasium.registry:
        gymnasium.register(ASTRA_SIM, entry_point="strata.training.environment.astra_sim:AstraSimEnv")
    if WAN_REPLAN not in gymnasium.registry:
        gymnasium.register(WAN_REPLAN, vector_entry_point="strata.training.replan.vector_env:WanReplanEnv")
