"""What scx_layered silently accepts in a policy, and what it does then: findings, one file a subject."""
