"""The scheduler that runs: events and time in, instructions out; whoever drives it does what they say."""
