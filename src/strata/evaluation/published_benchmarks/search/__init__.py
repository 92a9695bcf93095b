"""The best plan of a published point under the published formulas: a reference solver, not the product's planner.

`point.search_point` bounds all `structures` (how many stages of which `stage_kinds`) for an `objective`, splits
the promising ones into layers (`layer_split`), lays them out over `zones`, and lets `formulas` decide alone.
"""
