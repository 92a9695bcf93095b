"""ASTRA-sim as a referee: traces and files for a binary the user installed, its runs, and what they say."""
