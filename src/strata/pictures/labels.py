"""What the rules that a plan is compared with are called."""

from typing import Final

LABELS: Final = {
    "best_single_domain": "best single domain",
    "equal_gpus_one_domain": "as many GPUs, one domain",
    "uniform_split": "uniform split",
    "home_domain": "home domain",
    "mast_like": "MAST-like",
    "sailor_like": "Sailor-like",
    "latency_blind": "latency-blind",
    "random_search": "random search",
    "nsga2": "NSGA-II",
}
