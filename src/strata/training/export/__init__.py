"""Launch files of a plan. Each module renders text only; the command line writes it."""
