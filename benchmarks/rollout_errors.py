"""How often a roll-out errs, and how soon it sees an effect: simulated fleets, from A/A to the end.

    python benchmarks/rollout_errors.py [--runs 200]

Each fleet has 20 jobs of 40 attempts with noise of 4 % and heavy tails (Student's t, 4 degrees of freedom) and
a drift of 1 % an attempt; the verdict is asked for after every round of attempts. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.host.rollout.rollouts import simulated

EFFECTS = (0.0, 0.01, 0.02, 0.04, -0.04)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    rows = []
    for effect in EFFECTS:
        verdicts = [simulated(seed, effect)[1] for seed in range(runs)]
        ends = Counter(str(verdict.status) for verdict in verdicts)
        rows.append(
            {
                "effect_log_ratio": effect,
                "roll_out": ends["roll-out"] / runs,
                "roll_back": ends["roll-back"] / runs,
                "ab_pairs_median": float(np.median([len(verdict.ab) for verdict in verdicts])),
            }
        )
    print(json.dumps({"runs": runs, "alpha": 0.05, "effects": rows}, indent=2))


if __name__ == "__main__":
    main()
