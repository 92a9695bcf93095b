"""An episode of strata/AstraSim-v0 from reset to CSV: four placements of a model on the seed's three sites.

python examples/astra_episode.py [analytic|events|aware|unaware|ns3]
"""

import csv
import sys

import gymnasium

from strata.training.environment import ASTRA_SIM, register

LAYERS = 34  # of llama-3.1-8b: the embedding, 32 blocks, the head
PLACEMENTS = {
    "all in East": [0] * LAYERS,
    "East, Central": [0] * 17 + [1] * 17,
    "East, West": [0] * 17 + [2] * 17,
    "a third each": [0] * 12 + [1] * 11 + [2] * 11,
}

register()
env = gymnasium.make(
    ASTRA_SIM,
    task_profile="llama-3.1-8b",
    backend=(sys.argv[1:] or ["analytic"])[0],
    episode_steps=len(PLACEMENTS),
)
env.reset(seed=0)
table = csv.writer(sys.stdout, lineterminator="\n")
table.writerow(["placement", "step_time_s", "utilization", "wan_GB", "reward", "last"])
for name, placement in PLACEMENTS.items():
    _, reward, _, truncated, info = env.step(placement)
    figures = [info["step_time_s"], info["utilization"], info["wan_bytes"] / 1e9, reward]
    table.writerow([name, *(f"{figure:.3f}" for figure in figures), truncated])
