"""The simulated world of re-planning: thousands of fleets at once, on the host or on a device.

`instance` draws a fleet and its jobs with their candidate plans; `pool` stacks instances into arrays; `world`
steps them: links (`links`) and jobs (`jobs`) change under `settings`, some of which are named presets.
`observe` shows the state as the `Options` that rules and policies decide on; `environment` is the same for
Gymnasium.
"""

from __future__ import annotations

from typing import Final

from strata.errors import need

WAN_REPLAN: Final = "strata/WanReplan-v0"


def register() -> None:
    """Make `gymnasium.make_vec("strata/WanReplan-v0")` work; twice does no harm.

    Raises MissingPart where gymnasium is not installed.
    """
    gymnasium = need("gymnasium", extra="train")
    if WAN_REPLAN not in gymnasium.registry:
        gymnasium.register(WAN_REPLAN, vector_entry_point="strata.learning.worlds.environment:WanReplanEnv")
