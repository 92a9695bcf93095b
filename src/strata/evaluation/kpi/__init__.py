"""The seeds' KPI table, measured: one file a row, each with its baseline, its interval and the guard beside it."""
