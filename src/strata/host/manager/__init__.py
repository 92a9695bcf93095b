"""Starts, watches and stops scx_layered; tells what it does, and when the kernel took its tasks back."""
