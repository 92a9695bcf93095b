"""Policies of thread layers: the file of scx_layered, and the same policy in words every Linux kernel knows."""
