"""Hi-PPO: a learned scheduler of two levels, between domains and inside each."""
