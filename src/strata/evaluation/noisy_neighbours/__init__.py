"""Measured on the kernel that runs here: what recording costs, what neighbours cost, what policies win back."""
