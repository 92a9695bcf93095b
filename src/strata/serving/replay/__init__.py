"""The live scheduler under virtual time: what nodes would do with its instructions, and how it went."""
