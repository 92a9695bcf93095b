"""Always on: what the threads of each job wait for, as metrics, under any scheduler; a trace where it is much."""
