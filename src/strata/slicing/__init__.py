"""Slicing: one accelerator, several tenants, a quota that holds."""
