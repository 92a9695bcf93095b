"""The table of target KPIs, measured: one file per row, with baseline, interval and the guard beside it."""
