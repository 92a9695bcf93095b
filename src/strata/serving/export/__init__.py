"""Launch scripts of serving engines, one a node of a plan."""
