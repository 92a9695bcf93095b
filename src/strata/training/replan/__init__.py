"""WanReplan: keep the plan in use or switch, while links, loads and jobs change."""
