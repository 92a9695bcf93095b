"""The frame every server shares."""
